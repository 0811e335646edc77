"""What the pages say of everything measured: the headline, the goals, where HAT is short of them, and the terms."""

from __future__ import annotations

from collections import Counter

from bench.hat.breakdown import PARTS
from bench.hat.goals import At, against, judge
from bench.hat.judging import DOUBTED, MISSED, VERDICTS, Check, Goal
from bench.hat.looks import BASELINES, DATASETS, SENDS_TEXT, SETTINGS, look
from bench.hat.records import Place
from bench.hat.shown import MISSING, between, number, percent_below
from bench.hat.summary import TBT, TTFT, Measured
from bench.hat.tables import PHASES, rests_on, spent
from bench.page import table

RATIOS = {
    "upload_ms": "upload of a row, ms", "base_ms": "step that decodes, ms", "chunk_ms": "step with a chunk, ms",
    "upload_per_step": "upload / step with a chunk", "upload_per_base": "upload / step that decodes",
    "row_per_base": "a row more / step that decodes",
}  # fmt: skip


def label(at: At) -> list[str]:
    """Prompts and model."""
    return [DATASETS[at[1]], SETTINGS[at[0]]]


def headline(measured: Measured, setting: str) -> str:
    """HAT against each baseline at the middle rates, with bar and verdict."""
    rows: list[list[str]] = []
    places: list[Place] = []
    for at in measured.pairs():
        rate = measured.middle_rate(*at)
        for base in (*BASELINES, SENDS_TEXT):
            if (
                at[0] != setting
                or rate is None
                or not measured.select(experiment="rates", setting=setting, method=base)
            ):
                continue
            row = [DATASETS[at[1]], look(base).label]
            for name in (TTFT, TBT):
                check = against(measured, base, at, rate, name)
                ours, theirs = (measured.spread(place, name) for place in check.places)
                both = " : ".join(MISSING if each is None else number(1e3 * each.median) for each in (ours, theirs))
                judged = [MISSING, MISSING] if base == SENDS_TEXT and name == TTFT else _verdict(measured, check)
                row += [both, percent_below(check.ratio), *judged]
                places += check.places
            rows.append(row)
    heads = [
        f"{delay}{said}"
        for delay in ("TTFT", "TBT")
        for said in (", ms, HAT : theirs", ": HAT % below", " bar", " verdict")
    ]
    return f"{table(['prompts', 'HAT against', *heads], rows)}\n\n{rests_on(measured, dict.fromkeys(places))}"


def _verdict(measured: Measured, check: Check) -> list[str]:
    """Its bar, and whether it is met, with the reason of a doubt."""
    bar = "above 0" if check.bar == 1 else f"at least {100 * (1 - check.bar):g}"
    verdict = check.verdict(measured)
    why = {True: ", spread", False: ", machine"}[check.straddles] if verdict == DOUBTED else ""
    return [bar, f"**{verdict}**{why}"]


def counted(goals: list[Goal]) -> str:
    """How many goals came out how."""
    count = Counter(goal.verdict for goal in goals)
    short = sum(goal.verdict == DOUBTED and bool(goal.shortfalls) for goal in goals)
    which = {DOUBTED: f" ({short} of them with a median short of the bar)"} if short else {}
    said = [f"{count[verdict]} {verdict}{which.get(verdict, '')}" for verdict in VERDICTS if count[verdict]]
    return f"Of {len(goals)} goals: {', '.join(said)}."


def judged(goals: list[Goal]) -> str:
    """Every goal with its verdict."""
    rows = [
        [*label((goal.setting, goal.dataset)), goal.name, goal.wanted, goal.measured, f"**{goal.verdict}**",
         "; ".join(goal.notes) or MISSING]
        for goal in goals
    ]  # fmt: skip
    return table(["prompts", "model", "goal", "wanted", "measured", "verdict", "beside it"], rows)


def shortfalls(measured: Measured, goals: list[Goal], missed: bool) -> str:
    """Where a median of delays is short of its bar: what HAT took, what was allowed, and the parts of it, in ms.

    missed: only of goals that are missed. A line is of the repeat whose ratio is the median, so that its parts add up.
    """
    rows = []
    for goal in goals:
        if goal.verdict == MISSED or not missed:
            rows += [row for check in goal.shortfalls if (row := _shortfall(measured, goal, check))]
    return table(["prompts", "model", "goal", "took", "allowed", *PARTS, "rest", "costs most"], rows)


def _shortfall(measured: Measured, goal: Goal, check: Check) -> list[str]:
    """Nothing of comparisons whose time has no parts, or where these were not recorded."""
    ours, other = check.places[0], check.places[-1]
    if check.delay not in PHASES or ours.experiment == "ablation":
        return []
    repeat = measured.middle_repeat(ours, other, check.delay, check.under)
    found = None if repeat is None else spent(measured, ours, check.delay, repeat)
    if repeat is None or found is None:
        return []
    allowed = check.bar * measured.numbers(other, check.under)[repeat]
    most = max(found.parts, key=lambda part: found.parts[part])
    shown = [number(1e3 * each) for each in (found.whole, allowed, *found.parts.values())]
    return [*label((goal.setting, goal.dataset)), f"{goal.name}: {check.label}", *shown, most]


def terms(measured: Measured) -> str:
    """Every time and ratio that links were scaled by, ours and the paper's."""
    rows = []
    for at in measured.pairs():
        places = measured.select(setting=at[0], dataset=at[1])

        def span(name: str, places: list = places) -> str:  # type: ignore[type-arg]
            return between([value for place in places for value in measured.numbers(place, name).values()])

        rows.append(
            [*label(at), *(f"{span(f'scaling.our_{each}')} / {span(f'scaling.paper_{each}')}" for each in RATIOS)]
        )
    return table(["prompts", "model", *(f"{said}, ours / paper" for said in RATIOS.values())], rows)


def runs(measured: Measured) -> str:
    """How much was measured, and where."""
    records = [record for place in measured.places for record in measured.repeats(place).values()]
    machines = sorted({each.machine for each in records if each.machine}) or ["a machine that is not named"]
    days = sorted({each.began[:10] for each in records if each.began}) or ["a day that is not known"]
    failed, requests = measured.failed(measured.places)
    short = len(measured.bottlenecks(measured.places))
    return (
        f"{len(records)} runs on {'; '.join(machines)}, {' to '.join(dict.fromkeys((days[0], days[-1])))}. "
        f"{failed} of {requests} requests failed. The machine itself was short of something in {short} runs."
    )


def figures(measured: Measured) -> dict[str, str]:
    """By the names that pages give them."""
    goals = judge(measured)
    return {
        "headline": headline(measured, "demo"),
        "headline wide": headline(measured, "wide"),
        "counted": counted(goals),
        "goals": judged(goals),
        "missed": shortfalls(measured, goals, missed=True),
        "short": shortfalls(measured, goals, missed=False),
        "terms": terms(measured),
        "runs": runs(measured),
    }
