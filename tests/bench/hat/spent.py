"""Where the time to a token went: on the device, on the link, waiting in the cloud, in its steps. Pure.

Parts are of ``bench.hat.breakdown``; what they leave of the delay the client saw (gateway, tokenising, head) is the
rest. All are means over requests. Medians over repeats need not add up; what is told of one repeat does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from bench.hat import paper
from bench.hat.breakdown import PARTS
from bench.hat.goals import HELPS, LEAVES, added
from bench.hat.looks import look, ordered
from bench.hat.records import Place
from bench.hat.shown import MISSING, around, number, percent_below
from bench.hat.summary import MEANS, TBT, TTFT, Measured
from bench.page import table

PHASES: Mapping[str, str] = {TTFT: "prompt", TBT: "decode"}
"""Which part of a record says where a delay went."""

ROUNDS = "breakdown.decode.rounds"

LEFT = 0.1
"""Share of a TTFT by which a strategy may change it and still leave it as it is: so far apart are equal runs."""


NOT_SURE = " Not sure: in some repeats it is less, in others more."


@dataclass(frozen=True)
class Spent:
    """One delay of one place in seconds: all of it, and its parts by name, the rest last."""

    place: Place
    whole: float
    parts: Mapping[str, float]


def spent(measured: Measured, place: Place, delay: str) -> Spent | None:
    """Where ``delay`` (``TTFT`` or ``TBT``) went, or ``None`` where that was not recorded."""
    whole, *parts = (measured.numbers(place, name) for name in (delay, *_names(delay)))
    known = sorted(whole.keys() & set.intersection(*(set(part) for part in parts)))
    if not known:
        return None
    found = {name: median(part[each] for each in known) for name, part in zip(PARTS, parts, strict=True)}
    rest = median(whole[each] - sum(part[each] for part in parts) for each in known)
    return Spent(place, median(whole[each] for each in known), {**found, "rest": rest})


def spent_in(measured: Measured, place: Place, delay: str, repeat: int) -> Spent | None:
    """The same of one repeat, where the parts add up."""
    whole, *parts = (measured.numbers(place, name).get(repeat) for name in (delay, *_names(delay)))
    known = [part for part in parts if part is not None]
    if whole is None or len(known) < len(PARTS):
        return None
    return Spent(place, whole, {**dict(zip(PARTS, known, strict=True)), "rest": whole - sum(known)})


def _names(delay: str) -> list[str]:
    """Of the parts' numbers in a record."""
    return [f"breakdown.{PHASES[delay]}.{part}_s" for part in PARTS]


def at_the_middle(measured: Measured, setting: str, dataset: str, delay: str) -> list[Spent]:
    """Every method's, and then every strategy's of Table 5, at the middle rate."""
    rate = measured.middle_rate(setting, dataset)
    found = []
    for experiment in ("rates", "ablation"):
        places = measured.select(experiment=experiment, setting=setting, dataset=dataset)
        here = {each.method: each for each in places if experiment == "ablation" or each.rate == rate}
        found += [spent(measured, here[method], delay) for method in ordered(here)]
    return [each for each in found if each is not None]


def name_of(place: Place) -> str:
    """What a row is called: strategies by Table 5, since HAT's rows have some of them too."""
    return f"Table 5: {look(place.method).label}" if place.experiment == "ablation" else look(place.method).label


def tables(measured: Measured, setting: str, dataset: str) -> str:
    """A table for each delay; '' where nothing was recorded."""
    said = []
    for delay, title in ((TTFT, MEANS["TTFT"]), (TBT, MEANS["TBT"])):
        found = at_the_middle(measured, setting, dataset, delay)
        if not found:
            continue
        columns = ["method", f"{title}, ms", *PARTS, "rest"]
        rows = [
            [name_of(each.place), *(number(1e3 * seconds) for seconds in (each.whole, *each.parts.values()))]
            for each in found
        ]
        if delay == TBT:
            columns.append("rounds a token")
            for row, each in zip(rows, found, strict=True):
                rounds = measured.spread(each.place, ROUNDS)
                row.append(MISSING if rounds is None else number(rounds.median, 2))
        said.append(table(columns, rows))
    return "\n\n".join(said)


def why_not_table_5(measured: Measured, setting: str, dataset: str) -> str:
    """A line for each strategy that did not help what Table 5 says it helps, or changed a TTFT that is left there."""
    lines = []
    for rate in measured.values("rate", experiment="ablation", setting=setting, dataset=dataset):
        for strategy, without, given, delay in (*HELPS, *LEAVES):
            places = [Place("ablation", setting, dataset, method, rate) for method in (without, given)]
            ratio = measured.ratio(places[1], places[0], delay)
            if ratio is None:
                continue
            if (strategy, without, given, delay) in LEAVES:
                other = ratio.low > 1 + LEFT or ratio.high < 1 - LEFT
            else:
                other = ratio.median >= 1
            if other:
                line = _change(measured, strategy, places[0], places[1], delay)
                lines.append(f"- {line}{NOT_SURE if ratio.low < 1 <= ratio.high else ''}")
    heading = (
        f"Where Table 5 is not reproduced (SD and PD leave TTFT as it is there; told are changes of over {LEFT:.0%} in "
        "every repeat), and what became of each part, of the repeat whose ratio is the median (of two in the middle "
        "the higher), so that they add up:"
    )
    return "\n".join([heading, "", *lines] * bool(lines))


def _change(measured: Measured, strategy: str, without: Place, given: Place, delay: str) -> str:
    said = f"{added(strategy, without.method)}: {'TTFT' if delay == TTFT else 'TBT'}"
    repeat = measured.middle_repeat(given, without, delay)
    assert repeat is not None  # There is a ratio of both.
    ends = [1e3 * measured.numbers(place, delay)[repeat] for place in (without, given)]
    said = f"{said} {' → '.join(number(each) for each in ends)} ms: "
    before, after = (spent_in(measured, place, delay, repeat) for place in (without, given))
    if before is None or after is None:
        return f"{said}where its time went was not recorded."
    changes = {part: seconds - before.parts[part] for part, seconds in after.parts.items()}
    grew = after.whole >= before.whole
    part = (max if grew else min)(changes, key=lambda each: changes[each])
    listed = ", ".join(f"{part} {_signed(1e3 * change)}" for part, change in changes.items())
    said += f"{listed}; the largest part {'more' if grew else 'less'} is {part}'s"
    doubts = measured.doubts([without, given])
    return said + (" (the machine itself was short, or of another speed, in one of these runs)." if doubts else ".")


def of_waiting(measured: Measured, setting: str, dataset: str) -> str:
    """What chunks alone do to TBT beside the paper's Table 5, and to the two parts that whole prompts make longer; ''
    where that was not measured."""
    theirs = paper.TABLE_5.get(dataset, {})
    if not {"none", "pc"} <= theirs.keys():
        return ""
    percent = number(100 * (1 - theirs["pc"].tbt_ms / theirs["none"].tbt_ms), 1)
    for rate in measured.values("rate", experiment="ablation", setting=setting, dataset=dataset):
        none, given = (Place("ablation", setting, dataset, method, rate) for method in ("none", "pc"))
        ratio, repeat = measured.ratio(given, none, TBT), measured.middle_repeat(given, none, TBT)
        if ratio is None or repeat is None:
            continue
        before, after = (spent_in(measured, place, TBT, repeat) for place in (none, given))
        if before is None or after is None:
            continue
        longer = measured.ratio(none, none, "scaling.our_chunk_ms", under="scaling.our_base_ms")
        theirs_longer = measured.ratio(none, none, "scaling.paper_chunk_ms", under="scaling.paper_base_ms")
        chunk = (
            f" A step with a chunk takes {around(longer, digits=1)} times one that decodes here, in the paper "
            f"{number(theirs_longer.median, 1)}."
            if longer and theirs_longer
            else ""
        )
        times = {each: (before.parts[each], after.parts[each]) for each in ("queue", "step")}
        said = ", ".join(f"{part} {number(1e3 * one)} → {number(1e3 * two)}" for part, (one, two) in times.items())
        return (
            f"With PC alone TBT is {percent_below(ratio)} % below none's, in the paper {percent}. Tokens wait for "
            "others' whole prompts, or share a step with them; chunks can spare no more than that. Of the repeat whose "
            f"ratio is the median: {number(1e3 * before.whole)} → {number(1e3 * after.whole)} ms, of which {said}."
            f"{chunk}"
        )
    return ""


def _signed(milliseconds: float) -> str:
    shown = round(milliseconds, 0 if abs(milliseconds) >= 10 else 1)
    return f"{'−' if shown < 0 else '+'}{abs(shown):g}"
