"""What HAT's delay is made of where a goal is short of its bar, beside what it is held against. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bench.hat.breakdown import PARTS
from bench.hat.judging import Bar, Goal, Shortfall
from bench.hat.looks import dataset_label, look, setting_label
from bench.hat.records import Place
from bench.hat.shown import MISSING, number
from bench.hat.spent import Spent, spent_in
from bench.hat.summary import Measured
from bench.page import table

MEANING = (
    "Where a median of delays is short of its bar, be the goal missed or in doubt: what HAT took, what the bar allows, "
    "and where the time went, ms (parts as in the tables below; of strategies see under Table 5). A line is of the "
    "repeat whose ratio is the median (of two in the middle the higher), so that its parts add up."
)
UPLOAD_MEANING = (
    " With one unloaded device the upload goes on during the other parts too, so it takes longer than the link's part: "
    "what is over it is what comes before its first chunk and after its last."
)


def shortfalls(measured: Measured, judged: Sequence[Goal]) -> str:
    """A table with a row for HAT and one for what it is held against, for each comparison; '' where none is short."""
    told: dict[tuple[tuple[Place, ...], Bar], list[list[str]]] = {}
    for goal in judged:
        for each in goal.shortfalls:
            if each.bar is not None and (each.places, each.bar) not in told:
                told[each.places, each.bar] = _rows(measured, goal, each, each.bar)
    rows = [row for found in told.values() for row in found]
    uploads = any(found and len(places) == 1 for (places, _), found in told.items())
    columns = ["prompts", "model", "goal", "method", "took", "allowed", *PARTS, "rest", "largest"]
    return f"{MEANING}{UPLOAD_MEANING * uploads}\n\n{table(columns, rows)}" if rows else ""


def _rows(measured: Measured, goal: Goal, short: Shortfall, bar: Bar) -> list[list[str]]:
    """None where it was not recorded where the time went."""
    ours, other = short.places[0], short.places[-1]
    repeat = measured.middle_repeat(ours, other, bar.delay, bar.under)
    found = None if repeat is None else spent_in(measured, ours, bar.delay, repeat)
    if repeat is None or found is None:
        return []
    allowed = bar.most * measured.numbers(other, bar.under)[repeat]
    what = [dataset_label(goal.dataset), setting_label(goal.setting).split(",")[0], f"{goal.name}: {short.label}"]
    rows = [[*what, *_row(found, number(1e3 * allowed))]]
    if other != ours and (theirs := spent_in(measured, other, bar.delay, repeat)):
        rows.append([*what[:2], "beside it", *_row(theirs, MISSING)])
    return rows


def _row(found: Spent, allowed: str) -> list[str]:
    parts = [number(1e3 * seconds) for seconds in found.parts.values()]
    largest = max(found.parts, key=lambda part: found.parts[part])
    return [look(found.place.method).label, number(1e3 * found.whole), allowed, *parts, largest]
