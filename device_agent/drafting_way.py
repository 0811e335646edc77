"""How one device drafts with one drafter: what was configured, and what all its answers have taught it so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from device_agent.drafters import Drafters
from drafting.calibration import Calibration, usual_chance
from drafting.costs import RoundCosts
from drafting.drafter import Drafter
from drafting.length import CostAware, DraftLength, Fixed
from drafting.verification import Rule
from split_model.submodel import Submodel

Prepare = Literal["none", "last", "all"]
StreamRows = Literal["auto", "on", "off"]

PRIOR_ROUND_S, PRIOR_ROW_S = 0.02, 0.0005
"""What a verification of one row, and each further row, is taken to cost before the first: a few decide anew."""

FIXED_CAP, AUTO_CAP = 8, 24
"""Longest draft where nobody says: HAT's threshold may go on for long where it is wrong, costs know when to stop."""


@dataclass(frozen=True)
class DraftSettings:
    """What was configured for every drafter.

    Attributes:
        rule: how a draft is verified.
        fixed: whether a draft ends by HAT's threshold (Eq. 5) instead of by what a further token is worth.
        threshold: for ``fixed``.
        cap: most tokens of a draft; 0: a good one.
        prepare: for which verdicts the device drafts on while one travels: none, those at the last drafted token (HAT's
            parallel drafting), or all.
        stream: whether rows of a draft are sent one by one as they are made.
    """

    rule: Rule = "keyed"
    fixed: bool = False
    threshold: float = 0.6
    cap: int = 0
    prepare: Prepare = "all"
    stream: StreamRows = "auto"


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
    """One drafter, its settings, and what its rounds have taught."""

    drafter: Drafter
    settings: DraftSettings
    length: DraftLength
    calibration: Calibration
    costs: RoundCosts
    tally: Tally = field(default_factory=Tally)
    step_s: float | None = None
    """Seconds of a step of the cloud, as it last said; None where none did."""

    @classmethod
    def of(cls, drafter: Drafter, settings: DraftSettings) -> DraftingWay:
        """With nothing learned yet."""
        costs = RoundCosts(PRIOR_ROUND_S, PRIOR_ROW_S)
        length: DraftLength = (
            Fixed(settings.threshold, settings.cap or FIXED_CAP)
            if settings.fixed
            else CostAware(costs, settings.cap or AUTO_CAP)
        )
        return cls(drafter, settings, length, Calibration(usual_chance), costs)

    def measured(self, middle: Submodel | None, row_bytes: int) -> None:
        """Take over what is known of the way to the middle submodel, and say what drafting takes here."""
        pace = middle.pace if middle is not None else None
        if middle is not None and pace is not None:
            self.step_s = pace.step_s
            self.costs.link(row_bytes, pace.up_bytes_s, row_bytes, pace.down_bytes_s)
            middle.drafts_in(self.costs.draft_s)

    @property
    def streams(self) -> bool:
        """Whether a round's rows are sent one by one.

        Where a row takes longer to make, or to send, than a step of the cloud takes, they arrive one by one anyway and
        the cloud keeps up; else they would only be torn into more steps.
        """
        if self.settings.stream != "auto":
            return self.settings.stream == "on"
        return self.step_s is not None and max(self.costs.draft_s, self.costs.link_row_s) >= self.step_s


class DraftingWays:
    """The ways of drafting that requests can ask for, each beginning to learn when it is first used."""

    def __init__(self, drafters: Drafters, settings: DraftSettings) -> None:
        self.drafters = drafters
        self._settings = settings
        self._ways: dict[str, DraftingWay] = {}

    def get(self, name: str) -> DraftingWay | None:
        """The way that a request names, empty for the default; None: do not draft. Raises ``SessionFailed``."""
        drafter = self.drafters.get(name)
        if drafter is None:
            return None
        if drafter.name not in self._ways:
            self._ways[drafter.name] = DraftingWay.of(drafter, self._settings)
        return self._ways[drafter.name]
