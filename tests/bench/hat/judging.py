"""How a goal is judged from comparisons. Pure.

A goal is judged on medians of ratios within repeats, and every comparison of it has to be good enough. One that is not,
beyond doubt, makes it missed. It is not measured when any cell it needs is missing, as planned. It is in doubt where a
comparison that decides it is: the spread of its repeats reaches over the bar, or the machine itself was short in one of
its runs, or of another speed in one than in the other; and where it would be met but more than ``FEW`` of HAT's
requests failed, since the slow ones may be those missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.hat.looks import LOOKS
from bench.hat.records import Place
from bench.hat.summary import Measured, Spread

FEW = 0.01
ENOUGH_REPEATS = 3
MET, MISSED, UNMEASURED, DOUBTED = "met", "missed", "not measured", "in doubt"
VERDICTS = (MET, MISSED, DOUBTED, UNMEASURED)


@dataclass(frozen=True)
class Bar:
    """A delay (``TTFT`` or ``TBT``) may be ``most`` times the number ``under`` of what it is held against."""

    delay: str
    under: str
    most: float


@dataclass(frozen=True)
class Shortfall:
    """A comparison that is short of its bar: its label and places as ``Check`` has them."""

    label: str
    places: tuple[Place, ...]
    bar: Bar | None


@dataclass(frozen=True)
class Goal:
    """One goal for one setting and data set.

    Attributes:
        repeats: of the comparison that has fewest; 0: none was measured.
        notes: what speaks against relying on it, and what stands beside it.
        shortfalls: the comparisons whose median is not good enough, be it beyond doubt or not.
    """

    setting: str
    dataset: str
    name: str
    wanted: str
    measured: str
    verdict: str
    repeats: int
    notes: tuple[str, ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()

    @property
    def said(self) -> str:
        """The verdict, with its repeats where they are few."""
        if self.verdict == UNMEASURED or self.repeats >= ENOUGH_REPEATS:
            return self.verdict
        return f"{self.verdict} ({self.repeats} repeat{'s' * (self.repeats != 1)})"


@dataclass(frozen=True)
class Check:
    """One comparison: what is compared (two places, ours first), the ratio of both, and whether it is good enough.

    ``bar`` says the same of a delay whose parts can be told.
    """

    label: str
    places: tuple[Place, ...]
    ratio: Spread | None
    good: Callable[[float], bool]
    show: Callable[[Spread], str]
    bar: Bar | None = None

    @property
    def straddles(self) -> bool:
        """Whether the spread of its repeats has both sides of the bar."""
        return self.ratio is not None and self.good(self.ratio.low) != self.good(self.ratio.high)

    def verdict(self, measured: Measured) -> str:
        """Of this comparison alone."""
        if self.ratio is None:
            return UNMEASURED
        if self.straddles or measured.doubts(self.places):
            return DOUBTED
        return MET if self.good(self.ratio.median) else MISSED

    def said(self) -> str:
        """What was measured, in a few words."""
        return f"{self.label}: {'not measured' if self.ratio is None else self.show(self.ratio)}"


def judged(
    measured: Measured,
    setting: str,
    dataset: str,
    name: str,
    wanted: str,
    checks: Sequence[Check],
    notes: Sequence[str] = (),
    worst: bool = False,
) -> Goal:
    """``worst``: of many checks, only those that are not met are said, or the one that is nearest to it."""
    verdicts = [check.verdict(measured) for check in checks] or [UNMEASURED]
    verdict = next(each for each in (MISSED, UNMEASURED, DOUBTED, MET) if each in verdicts)
    places = tuple(dict.fromkeys(place for check in checks for place in check.places))
    ours = [place for place in places if place.method not in LOOKS or place.method == "hat"]
    failed, requests = measured.failed(ours)
    if verdict == MET and failed > FEW * requests:
        verdict = DOUBTED
    shown = (_worst(checks) if worst else "; ".join(check.said() for check in checks)) or "nothing"
    doubts = _doubts(measured, checks, places, failed, requests)
    repeats = min((check.ratio.count for check in checks if check.ratio is not None), default=0)
    short = tuple(
        Shortfall(check.label, check.places, check.bar)
        for check in checks
        if check.ratio is not None and not check.good(check.ratio.median)
    )
    return Goal(setting, dataset, name, wanted, shown, verdict, repeats, (*notes, *doubts), short)


def _worst(checks: Sequence[Check]) -> str:
    known = [(check, check.ratio) for check in checks if check.ratio is not None]
    said = [check.said() for check, ratio in known if not check.good(ratio.median)]
    if known and not said:
        nearest, _ = max(known, key=lambda each: each[1].median)
        said = [f"of {len(known)} the nearest is {nearest.said()}"]
    if absent := len(checks) - len(known):
        said.append(f"{absent} of {len(checks)} not measured")
    return "; ".join(said)


def _doubts(
    measured: Measured, checks: Sequence[Check], places: Sequence[Place], failed: int, requests: int
) -> list[str]:
    notes = []
    if straddling := [check.label for check in checks if check.straddles]:
        notes.append(f"repeats on both sides of the bar: {', '.join(straddling)}")
    if failed:
        notes.append(f"{failed} of {requests} requests of HAT's failed and are in no delay")
    lost, asked = measured.failed(place for place in places if place.method in LOOKS and place.method != "hat")
    if lost:
        notes.append(f"{lost} of {asked} requests of the others' failed and are in no delay")
    records = sum(len(measured.repeats(place)) for place in places)
    if short := measured.bottlenecks(places):
        notes.append(f"in {len(short)} of {records} runs the machine itself was short: {short[0]}")
    doubts = [each for check in checks for each in measured.doubts(check.places)]
    if uneven := [each for each in doubts if each not in short]:
        notes.append(f"the machine's speed changed: {max(uneven)}")
    return notes
