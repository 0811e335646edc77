"""How one device drafts with one drafter: what was configured, and what its answers have taught it so far.

What texts teach, how often drafts are accepted, belongs to the tenant whose texts they are: else the length of one's
drafts, and so the time of its answers, would tell of another's. What rounds cost is about the machines, and for all.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from device_agent.speculative.drafters import Drafters
from drafting.calibration import Calibration, usual_chance
from drafting.costs import RoundCosts
from drafting.drafter import Drafter
from drafting.hybrid import HybridDrafter
from drafting.length import CostAware, DraftLength, Fixed
from drafting.verification import Rule
from service.draft_settings import DraftSettings as DraftSettings
from service.modes import NO_DRAFT
from split_model.submodel import Submodel

PRIOR_ROUND_S, PRIOR_ROW_S = 0.02, 0.0005
"""What a verification of one row, and each further row, is taken to cost before the first: a few decide anew."""

MAX_WAYS = 256
"""Ways whose lessons are kept, by tenant and drafter: who comes back after so many others learns anew."""

FIXED_CAP, AUTO_CAP = 8, 24
"""Longest draft where nobody says: HAT's threshold may go on for long where it is wrong, costs know when to stop."""


@dataclass
class Tally:
    """What drafting brought: of one answer, or of all.

    Attributes:
        rounds: verifications.
        proposed, accepted: drafted tokens.
        prepared, hits: rounds for whose verdicts something was prepared, and those for which it was the right thing.
    """

    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    prepared: int = 0
    hits: int = 0


@dataclass
class DraftingWay:
    """One drafter, its settings, and what the rounds of one tenant have taught; ``costs`` those of all. Without a
    drafter every draft is empty: that is plain decoding, and teaches nothing."""

    drafter: Drafter | None
    settings: DraftSettings
    length: DraftLength
    calibration: Calibration
    costs: RoundCosts
    tally: Tally = field(default_factory=Tally)
    step_s: float | None = None
    """Seconds of a step of the cloud, as it last said; None where none did."""

    @classmethod
    def of(cls, drafter: Drafter | None, settings: DraftSettings, costs: RoundCosts | None = None) -> DraftingWay:
        """With nothing learned yet but the ``costs``."""
        costs = costs or RoundCosts(PRIOR_ROUND_S, PRIOR_ROW_S)
        length: DraftLength = (
            Fixed(settings.draft_threshold, settings.draft_cap or FIXED_CAP)
            if settings.draft_length == "fixed"
            else CostAware(costs, settings.draft_cap or AUTO_CAP)
        )
        return cls(drafter, settings, length, Calibration(usual_chance), costs)

    @property
    def name(self) -> str:
        """What requests call it."""
        return self.drafter.name if self.drafter is not None else NO_DRAFT

    @property
    def tree_nodes(self) -> int:
        """See ``Drafter.tree_nodes``."""
        return self.drafter.tree_nodes if self.drafter is not None else 0

    @property
    def rule(self) -> Rule:
        """How its drafts are verified: of a tree all branches have one noise, drawn drafts are for chains."""
        return "keyed" if self.tree_nodes else self.settings.verify

    @property
    def prepares(self) -> bool:
        """Whether the device drafts on while a draft is verified."""
        return self.drafter is not None and not self.tree_nodes and self.settings.prepare != "none"

    def measured(self, middle: Submodel | None, row_bytes: int) -> None:
        """Take over what is known of the way to the middle submodel, and say what drafting takes here."""
        hints = middle.hints if middle is not None else None
        if hints is not None:
            pace = hints.pace
            self.step_s = pace.step_s
            self.costs.link(row_bytes, pace.up_bytes_s, row_bytes, pace.down_bytes_s)
            hints.drafts_in(self.costs.draft_s)

    @property
    def streams(self) -> bool:
        """Whether a round's rows are sent one by one.

        Where a row takes longer to make, or to send, than a step of the cloud takes, they arrive one by one anyway and
        the cloud keeps up; else they would only be torn into more steps.
        """
        if self.tree_nodes:
            return False
        if self.settings.stream_rows != "auto":
            return self.settings.stream_rows == "on"
        return self.step_s is not None and max(self.costs.draft_s, self.costs.link_row_s) >= self.step_s


class DraftingWays:
    """The ways of drafting that requests can ask for, each beginning to learn when a tenant first uses it."""

    def __init__(self, drafters: Drafters, settings: DraftSettings) -> None:
        self.drafters = drafters
        self._settings = settings
        self._plain = DraftingWay.of(None, settings)
        self._ways: OrderedDict[tuple[str, str], DraftingWay] = OrderedDict()
        """By tenant and drafter, the one that was used last at the end."""
        self._costs: dict[str, RoundCosts] = {}

    def get(self, name: str, tenant: str = "") -> DraftingWay:
        """The way that a request names, empty for the default. Raises ``SessionFailed``."""
        drafter = self.drafters.get(name)
        if drafter is None:
            return self._plain
        key = tenant, drafter.name
        if key not in self._ways:
            costs = self._costs.setdefault(drafter.name, RoundCosts(PRIOR_ROUND_S, PRIOR_ROW_S))
            own = drafter.apart() if isinstance(drafter, HybridDrafter) else drafter
            self._ways[key] = DraftingWay.of(own, self._settings, costs)
            if len(self._ways) > MAX_WAYS:
                self._ways.popitem(last=False)
        self._ways.move_to_end(key)
        return self._ways[key]
