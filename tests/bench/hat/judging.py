"""How a goal is judged from comparisons. Pure.

A goal is judged on medians of ratios within repeats. It is not measured when any cell it needs is missing (and missed
when what there is misses it), and in doubt when it would be met but more than ``FEW`` of HAT's requests failed in those
cells, since then the slow ones may be those that are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.hat.looks import LOOKS
from bench.hat.records import Place
from bench.hat.summary import Measured, Spread

FEW = 0.01
MET, MISSED, UNMEASURED, DOUBTED = "met", "missed", "not measured", "in doubt"


@dataclass(frozen=True)
class Goal:
    """One goal for one setting and data set. ``notes`` say what speaks against relying on it."""

    setting: str
    dataset: str
    name: str
    wanted: str
    measured: str
    verdict: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """One comparison: what is compared (two places, ours first), the ratio of both, and whether it is good enough."""

    label: str
    places: tuple[Place, ...]
    ratio: Spread | None
    good: Callable[[float], bool]
    show: Callable[[Spread | None], str]


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
    """``worst``: of many checks, only those that are missed or nearest to it are said."""
    checked = [(check, check.ratio is not None and check.good(check.ratio.median)) for check in checks]
    places = tuple(dict.fromkeys(place for check in checks for place in check.places))
    ours = [place for place in places if place.method not in LOOKS or place.method == "hat"]
    failed, requests = measured.failed(ours)
    verdict = MET if checked and all(good for _, good in checked) else MISSED
    if not checks or any(check.ratio is None for check in checks):
        verdict = UNMEASURED if all(good for check, good in checked if check.ratio is not None) else MISSED
    elif verdict == MET and failed > FEW * requests:
        verdict = DOUBTED
    said = [(check, good) for check, good in checked if not good] or _nearest(checked) if worst else checked
    shown = "; ".join(f"{check.label}: {check.show(check.ratio)}" for check, _ in said) or "nothing"
    if worst and checked and all(good for _, good in checked):
        shown = f"of {len(checked)} the nearest is {shown}"
    return Goal(setting, dataset, name, wanted, shown, verdict, (*notes, *_doubts(measured, places, failed, requests)))


def _nearest(checked: Sequence[tuple[Check, bool]]) -> list[tuple[Check, bool]]:
    known = [each for each in checked if each[0].ratio is not None]
    return sorted(known, key=lambda each: -each[0].ratio.median if each[0].ratio else 0.0)[:1]


def _doubts(measured: Measured, places: Sequence[Place], failed: int, requests: int) -> list[str]:
    notes = []
    if failed:
        notes.append(f"{failed} of {requests} requests of HAT's failed and are in no delay")
    lost, asked = measured.failed(place for place in places if place.method in LOOKS and place.method != "hat")
    if lost:
        notes.append(f"{lost} of {asked} requests of the others' failed and are in no delay")
    records = sum(len(measured.repeats(place)) for place in places)
    if short := measured.bottlenecks(places):
        notes.append(f"in {len(short)} of {records} runs the machine itself was short: {short[0]}")
    return notes
