"""How a goal is judged from comparisons. Pure.

A goal is judged on medians of ratios within repeats, and every comparison of it has to be good enough. One that is not,
beyond doubt, makes it missed. It is not measured when any cell it needs is missing, as planned. It is in doubt where a
comparison that decides it is: the spread of its repeats reaches over the bar, or the machine itself was short in one of
its runs, or of another speed in one than in the other; and where it would be met but more than ``FEW`` of HAT's
requests failed, since the slow ones may be those missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.hat.looks import BASELINES, SENDS_TEXT
from bench.hat.records import Place
from bench.hat.shown import around, percent_below
from bench.hat.summary import Measured, Spread

FEW = 0.01
MET, MISSED, UNMEASURED, DOUBTED = "met", "missed", "not measured", "in doubt"
VERDICTS = (MET, MISSED, DOUBTED, UNMEASURED)


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
        places: what is compared, ours first.
        ratio: of ours to the other's, or to the number ``under`` of our own.
        bar: a ratio of delays has to be at most that, of 1 below it; a ratio of speeds (``speeds``) at least.
        delay: which number is compared.
        times: whether the ratio is said as such, and not as per cent below 1.
    """

    label: str
    places: tuple[Place, ...]
    ratio: Spread | None
    bar: float
    delay: str
    under: str = ""
    speeds: bool = False
    times: bool = False

    def good(self, ratio: float) -> bool:
        """Whether a ratio is good enough."""
        if self.speeds:
            return ratio >= self.bar
        if self.bar == 1:
            return ratio < 1
        # A bar of 54 % below is 1 - 0.54, which is a little more or less than 0.46.
        return ratio <= self.bar if self.times else 100 * (1 - ratio) >= round(100 * (1 - self.bar), 9)

    @property
    def straddles(self) -> bool:
        """Whether the spread of its repeats has both sides of the bar."""
        return self.ratio is not None and self.good(self.ratio.low) != self.good(self.ratio.high)

    @property
    def short(self) -> bool:
        """Whether its median is not good enough, be it beyond doubt or not."""
        return self.ratio is not None and not self.good(self.ratio.median)

    def verdict(self, measured: Measured) -> str:
        """Of this comparison alone."""
        if self.ratio is None:
            return UNMEASURED
        if self.straddles or measured.doubts(self.places):
            return DOUBTED
        return MISSED if self.short else MET

    def shown(self) -> str:
        """Its ratio in a few words."""
        if self.ratio is None:
            return UNMEASURED
        return f"{around(self.ratio, digits=2)} times" if self.times else f"{percent_below(self.ratio)} %"

    def said(self) -> str:
        """What was measured, in a few words."""
        return f"{self.label}: {self.shown()}"


@dataclass(frozen=True)
class Goal:
    """One goal for one setting and data set.

    Attributes:
        notes: what speaks against relying on it, and what stands beside it.
    """

    setting: str
    dataset: str
    name: str
    wanted: str
    measured: str
    verdict: str
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()

    @property
    def shortfalls(self) -> list[Check]:
        """The comparisons whose median is not good enough."""
        return [check for check in self.checks if check.short]


def judged(
    measured: Measured,
    at: tuple[str, str],
    name: str,
    wanted: str,
    checks: Sequence[Check],
    notes: Sequence[str] = (),
    worst: bool = False,
) -> Goal:
    """``at``: setting and data set. ``worst``: only comparisons that are short are said, or the one nearest to it."""
    verdicts = [check.verdict(measured) for check in checks] or [UNMEASURED]
    verdict = next(each for each in (MISSED, UNMEASURED, DOUBTED, MET) if each in verdicts)
    places = tuple(dict.fromkeys(place for check in checks for place in check.places))
    others = [place for place in places if place.method in (*BASELINES, SENDS_TEXT)]
    failed, requests = measured.failed(place for place in places if place not in others)
    if verdict == MET and failed > FEW * requests:
        verdict = DOUBTED
    doubts = _doubts(measured, checks, places)
    if failed:
        doubts.append(f"{failed} of {requests} requests of HAT's failed and are in no delay")
    lost, asked = measured.failed(others)
    if lost:
        doubts.append(f"{lost} of {asked} requests of the others' failed and are in no delay")
    shown = (_worst(checks) if worst else "; ".join(check.said() for check in checks)) or "nothing"
    return Goal(*at, name, wanted, shown, verdict, tuple(checks), (*notes, *doubts))


def _worst(checks: Sequence[Check]) -> str:
    known = [(check, check.ratio.median) for check in checks if check.ratio is not None]
    said = [check.said() for check, _ in known if check.short]
    if known and not said:
        nearest, _ = max(known, key=lambda each: each[1])
        said = [f"of {len(known)} the nearest is {nearest.said()}"]
    if absent := len(checks) - len(known):
        said.append(f"{absent} of {len(checks)} not measured")
    return "; ".join(said)


def _doubts(measured: Measured, checks: Sequence[Check], places: Sequence[Place]) -> list[str]:
    repeats = min((check.ratio.count for check in checks if check.ratio is not None), default=0)
    notes = ["one repeat"] if repeats == 1 else []
    if straddling := [check.label for check in checks if check.straddles]:
        notes.append(f"repeats on both sides of the bar: {', '.join(straddling)}")
    records = sum(len(measured.repeats(place)) for place in places)
    if short := measured.bottlenecks(places):
        notes.append(f"in {len(short)} of {records} runs the machine itself was short: {short[0]}")
    doubts = [each for check in checks for each in measured.doubts(check.places)]
    if uneven := [each for each in doubts if each not in short]:
        notes.append(f"the machine's speed changed: {max(uneven)}")
    return notes
