"""How one device drafts with one drafter: what was configured, and what its answers have taught it so far.

What texts teach, how often drafts are accepted and what answers in a form said, belongs to the tenant whose texts they
are: else the length of one's drafts, and so the time of its answers, would tell of another's. What rounds cost is about
the machines, and for all.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from device_agent.speculative.drafters import Drafters
from drafting.calibration import Calibration, usual_chance
from drafting.costs import RoundCosts
from drafting.drafter import Drafter
from drafting.earlier import EarlierAnswers
from drafting.length import CostAware, DraftLength, Fixed
from drafting.verification import Rule
from service.draft_settings import DraftSettings as DraftSettings
from service.modes import NO_DRAFT

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
        drafts: rounds whose draft was not empty.
        proposed, accepted: drafted tokens.
        prepared, hits: rounds for whose verdicts something was prepared, and those for which it was the right thing.
    """

    rounds: int = 0
    drafts: int = 0
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
    rule: Rule
    """How its drafts are verified: of a tree all branches have one noise, drawn drafts are for chains."""
    tree_nodes: int
    """See ``Drafter.tree_nodes``."""
    prepares: bool
    """Whether the device drafts on while a draft is verified."""
    tally: Tally = field(default_factory=Tally)
    earlier: EarlierAnswers = field(default_factory=EarlierAnswers)
    """What the tenant's answers in forms have said."""

    @classmethod
    def of(cls, drafter: Drafter | None, settings: DraftSettings, costs: RoundCosts | None = None) -> DraftingWay:
        """With nothing learned yet but the ``costs``."""
        costs = costs or RoundCosts(PRIOR_ROUND_S, PRIOR_ROW_S)
        length: DraftLength = (
            Fixed(settings.draft_threshold, settings.draft_cap or FIXED_CAP)
            if settings.draft_length == "fixed"
            else CostAware(costs, settings.draft_cap or AUTO_CAP)
        )
        tree_nodes = drafter.tree_nodes if drafter is not None else 0
        return cls(
            drafter,
            settings,
            length,
            Calibration(usual_chance),
            costs,
            rule="keyed" if tree_nodes else settings.verify,
            tree_nodes=tree_nodes,
            prepares=drafter is not None and not tree_nodes and settings.prepare != "none",
        )

    @property
    def name(self) -> str:
        """What requests call it."""
        return self.drafter.name if self.drafter is not None else NO_DRAFT


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
            self._ways[key] = DraftingWay.of(drafter.apart(), self._settings, costs)
            if len(self._ways) > MAX_WAYS:
                self._ways.popitem(last=False)
        self._ways.move_to_end(key)
        return self._ways[key]
