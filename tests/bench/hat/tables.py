"""Markdown tables, one for each figure and table of the paper, each row with the paper's figure beside ours.

Each is made for a setting and a data set; a page names it as ``rates demo cnndm``. Absolute times differ, since models,
machines and links do: what is compared is how far each is below U-shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from bench.hat import paper
from bench.hat.breakdown import PARTS
from bench.hat.goals import ROUND_TRIPS
from bench.hat.lengths import DATASETS, POSITIONS, draw
from bench.hat.looks import look, ordered
from bench.hat.prompts import TOLERANCE
from bench.hat.records import BOUND, SENT, Place, Record
from bench.hat.shown import MISSING, around, between, milliseconds, number, percent_below
from bench.hat.summary import DECODE_TOKENS_S, STEP, STEP_STD, TBT, TOKENS_S, TTFT, Measured, Spread, compliance, met_by
from bench.page import table

TAU, ROWS = "latency.tau", "cloud.rows_mean"
FULL, LAST = paper.BASE, "ushape"
PHASES: Mapping[str, str] = {TTFT: "prompt", TBT: "decode"}
"""Which part of a record says where a delay went."""


@dataclass(frozen=True)
class Row:
    """A place, and those of other methods that were measured under its condition."""

    measured: Measured
    place: Place
    beside: Mapping[str, Place]

    def spread(self, name: str) -> Spread | None:
        """A number over its repeats."""
        return self.measured.spread(self.place, name)

    def over(self, name: str, under: str) -> Spread | None:
        """A number over another of the same run."""
        return self.measured.ratio(self.place, self.place, name, under=under)

    def below(self, base: str, name: str) -> str:
        """Per cent below another method."""
        other = self.beside.get(base)
        return MISSING if other in (None, self.place) else percent_below(self.measured.ratio(self.place, other, name))


Column = tuple[str, Callable[[Row], str]]


def _ms(head: str, name: str) -> Column:
    return f"{head}, ms", lambda row: milliseconds(row.spread(name))


def _plain(head: str, name: str, digits: int | None = None) -> Column:
    return head, lambda row: around(row.spread(name), digits=digits)


def _below(head: str, base: str, name: str) -> Column:
    return head, lambda row: row.below(base, name)


def _paper_below(delay: str) -> Column:
    """What the paper has at its own rate, beside our middle one, or at the same length of a pipeline."""

    def shown(row: Row) -> str:
        place = row.place
        found = paper.below_base(place.experiment, place.dataset, place.method, delay)
        if found is None or place.method == FULL:
            return MISSING
        if place.experiment == "stages":
            return f"{found.percent:.1f}" if found.at == place.stages else MISSING
        at_middle = place.rate == row.measured.middle_rate(place.setting, place.dataset)
        return f"{found.percent:.1f} at {found.at:g}/s" if at_middle else MISSING

    return f"paper: {delay.upper()}, % below", shown


def _delays(beside_paper: bool) -> list[Column]:
    columns = []
    for head, name in (("TTFT", TTFT), ("TBT", TBT)):
        columns += [
            _ms(head, name),
            _below("% below U-shape, all rows", FULL, name),
            _below("% below last row", LAST, name),
        ]
        columns += [_paper_below(head.lower())] * beside_paper
    return columns if beside_paper else [*columns, _plain("τ", TAU, 2)]


def _speedup(row: Row) -> str:
    base = row.beside.get(LAST)
    return MISSING if base is None else around(row.measured.ratio(base, row.place, TBT), digits=2)


def _table_4(head: str, field: str, shown: str) -> Column:
    def column(row: Row) -> str:
        method = FULL if row.place.method == LAST else paper.SAME.get(row.place.method, row.place.method)
        theirs = paper.TABLE_4.get(row.place.dataset, {}).get(method)
        return MISSING if theirs is None else format(getattr(theirs, field), shown)

    return f"paper: {head}", column


def _table_5(delay: int) -> Column:
    def column(row: Row) -> str:
        theirs = paper.TABLE_5.get(row.place.dataset, {})
        if row.place.method not in theirs or row.place.method == "none":
            return MISSING
        return f"{100 * (1 - theirs[row.place.method][delay] / theirs['none'][delay]):.1f}"

    return "paper: % below none", column


def _figure_8(which: int) -> Column:
    def column(row: Row) -> str:
        theirs = paper.FIGURE_8.get(row.place.dataset, {})
        method = paper.SAME.get(row.place.method, row.place.method)
        return f"{theirs[method][which] / theirs[FULL][which]:.2f}" if method in theirs else MISSING

    return f"paper: {'std' if which else 'step'} / U-shape's", column


def _over_base(head: str, name: str) -> Column:
    def column(row: Row) -> str:
        base = row.beside.get(FULL)
        return MISSING if base is None else around(row.measured.ratio(row.place, base, name), digits=2)

    return head, column


def _within(row: Row) -> str:
    """The share that meets the strictest prefill SLA that all of HAT's requests of the repeat meet."""
    hat = row.beside.get("hat")
    if hat is None:
        return MISSING

    def share(ours: Record, best: Record) -> float | None:
        return compliance(ours, "prefill", best.prefill_sla[-1]) if best.prefill_sla else None

    return around(row.measured.over_repeats([row.place, hat], share), 100, digits=0)


def _decode_sla(row: Row) -> str:
    _, share, _ = paper.FIGURES_9_10[row.place.dataset]
    return milliseconds(row.measured.over_repeats([row.place], lambda record: met_by(record, "decode", share)))


def _figures_9_10(head: str, which: int) -> Column:
    def column(row: Row) -> str:
        theirs = paper.FIGURES_9_10[row.place.dataset][2].get(paper.SAME.get(row.place.method, row.place.method))
        return MISSING if theirs is None else f"{theirs[which]:.1f}"

    return f"paper: {head}", column


def _of_its_own(name: str) -> Column:
    def column(row: Row) -> str:
        near = replace(row.place, rtt_ms=0.0)
        return MISSING if near == row.place else around(row.measured.ratio(row.place, near, name), digits=2)

    return "of its own at 0 ms", column


def _round_trip_goal(row: Row) -> str:
    return (
        f"{ROUND_TRIPS[row.place.rtt_ms]:g}"
        if row.place.method == "hat" and row.place.rtt_ms in ROUND_TRIPS
        else MISSING
    )


def _quantiles(head: str, delay: str) -> Column:
    def column(row: Row) -> str:
        found = [row.spread(f"latency.{delay}.{at}") for at in ("p50", "p90", "p99")]
        return " / ".join(MISSING if each is None else number(1e3 * each.median) for each in found)

    return f"{head}, p50 / p90 / p99, ms", column


def _same_texts(row: Row) -> str:
    base = row.beside.get(LAST, row.place)
    same, asked = row.measured.same_texts(row.place, base) if base != row.place else (0, 0)
    return f"{same} of {asked}" if asked else MISSING


def _chunk_count(row: Row) -> str:
    """Of chunks of a fixed size; how the cloud advised is in no record."""
    size = row.place.method.removeprefix("chunk-")
    if not size.isdigit():
        return "1" if row.place.method == LAST else MISSING
    record = next(iter(row.measured.repeats(row.place).values()))
    drawn = draw(DATASETS[row.place.dataset], record.requests, 0, POSITIONS - record.tokens - TOLERANCE)
    return number(fmean(-(-each // int(size)) for each in drawn), 1)


COLUMNS: Mapping[str, Sequence[Column]] = {
    "rates": _delays(True),
    "stages": _delays(True),
    "traces": _delays(False),
    "real": _delays(False),
    "steps": (
        _ms("step", STEP), _ms("std", STEP_STD), _plain("rows a step", ROWS), _over_base("std / U-shape's", STEP_STD),
        _figure_8(0), _figure_8(1),
    ),
    "slas": (
        ("% within the slowest of HAT's, prefill", _within), _figures_9_10("% within its SLA", 0),
        ("decode SLA met, ms", _decode_sla), _figures_9_10("ms", 1),
    ),
    "details": (
        _quantiles("TTFT", "ttft"), _quantiles("TBT of single tokens", "tbt"), _plain("tokens/s", TOKENS_S),
        _plain("goodput, requests/s", "latency.goodput"), _plain("τ", TAU, 2),
        ("kB up / token", lambda row: around(row.over("cloud.up_bytes", "latency.tokens"), 1e-3)),
        ("kB down / token", lambda row: around(row.over("cloud.down_bytes", "latency.tokens"), 1e-3)),
        ("same text as U-shape", _same_texts),
    ),
    "single": (
        _plain("τ", TAU, 2), _table_4("accept", "accept", ".2f"), ("speedup", _speedup),
        _table_4("speedup", "speedup", ".2f"), _ms("TBT", TBT), _table_4("trained parameters", "parameters", ",d"),
    ),
    "ablation": (
        _ms("TTFT", TTFT), _below("% below none", "none", TTFT), _table_5(0),
        _ms("TBT", TBT), _below("% below none", "none", TBT), _table_5(1), _ms("step", STEP), _plain("τ", TAU, 2),
    ),
    "chunks": (
        ("chunks of a prompt", _chunk_count), _ms("TTFT", TTFT), _below("% below whole", LAST, TTFT),
        _ms("TBT", TBT), _below("% below whole", LAST, TBT), _ms("step", STEP), _ms("std", STEP_STD),
    ),
    "unloaded": (
        _ms("TTFT", TTFT), _ms("upload of rows as they are", BOUND),
        ("TTFT / that", lambda row: around(row.over(TTFT, BOUND), digits=2)), _ms("upload of what it sends", SENT),
        ("TTFT / that", lambda row: around(row.over(TTFT, SENT), digits=2)),
    ),
    "rtt": (
        _plain("tokens/s while decoding", DECODE_TOKENS_S), _of_its_own(DECODE_TOKENS_S), ("goal", _round_trip_goal),
        _plain("tokens/s of whole answers", TOKENS_S), _of_its_own(TOKENS_S), _ms("TTFT", TTFT), _ms("TBT", TBT),
    ),
}  # fmt: skip
AT_MIDDLE = ("steps", "slas", "details", "parts")
"""Of the experiment ``rates`` at its middle rate."""

BY = {"rates": "rate", "stages": "stages", "traces": "trace", "rtt": "rtt_ms"}
HEADS = {"rate": "requests/s", "stages": "stages", "trace": "bandwidth trace", "rtt_ms": "round trip, ms"}


def places_of(measured: Measured, kind: str, setting: str, dataset: str) -> list[Place]:
    """What a table shows."""
    if kind in AT_MIDDLE:
        return list(measured.middle(setting, dataset).values())
    found = measured.select(experiment=kind, setting=setting, dataset=dataset)
    if kind == "chunks":  # Whole prompts are U-shape's.
        found += [place for name, place in measured.middle(setting, dataset).items() if name == LAST]
    return found


def made(measured: Measured, kind: str, setting: str, dataset: str) -> str:
    """A table, and below it what it rests on; '' where nothing was measured for it."""
    places = places_of(measured, kind, setting, dataset)
    if not places:
        return ""
    if kind == "parts":
        return f"{_parts(measured, places)}\n\n{rests_on(measured, places)}"
    columns, by = COLUMNS[kind], BY.get(kind)
    heads = [*([HEADS[by]] if by else []), "method", *(head for head, _ in columns)]
    rows = []
    for at in sorted({getattr(each, by) for each in places}) if by else [None]:
        here = {each.method: each for each in places if by is None or getattr(each, by) == at}
        for method in ordered(here):
            row = Row(measured, here[method], here)
            first = [] if by is None else [at if isinstance(at, str) else f"{at:g}"]
            rows.append([*first, look(method).label, *(shown(row) for _, shown in columns)])
    known = [at for at in range(len(heads)) if any(row[at] != MISSING for row in rows)]
    shown = table([heads[at] for at in known], [[row[at] for at in known] for row in rows])
    return f"{shown}\n\n{rests_on(measured, places)}"


def rests_on(measured: Measured, places: Iterable[Place]) -> str:
    """A line below a table: its repeats, requests that failed, and runs in which the machine itself was short."""
    places = list(places)
    repeats = between([len(measured.repeats(place)) for place in places], 0)
    failed, requests = measured.failed(places)
    runs = sum(len(measured.repeats(place)) for place in places)
    short = len(measured.bottlenecks(places))
    machine = f" The machine itself was short in {short} of {runs} runs." if short else ""
    return f"*Repeats: {repeats}. Failed requests: {failed} of {requests}.{machine}*"


@dataclass(frozen=True)
class Spent:
    """One delay in seconds: all of it, and its parts by name, the rest (gateway, tokenising, head) last."""

    whole: float
    parts: Mapping[str, float]


def spent(measured: Measured, place: Place, delay: str, repeat: int | None = None) -> Spent | None:
    """Where ``delay`` went: medians of the repeats, which need not add up, or one repeat, which does."""
    names = (delay, *(f"breakdown.{PHASES[delay]}.{part}_s" for part in PARTS))
    numbers = [measured.numbers(place, name) for name in names]
    known = set.intersection(*(set(each) for each in numbers)) & ({repeat} if repeat is not None else {*numbers[0]})
    if not known:
        return None
    runs = [[each[at] for each in numbers] for at in sorted(known)]
    whole, *parts = (median(values) for values in zip(*runs, strict=True))
    rest = median(run[0] - sum(run[1:]) for run in runs)
    return Spent(whole, {**dict(zip(PARTS, parts, strict=True)), "rest": rest})


def _parts(measured: Measured, places: Sequence[Place]) -> str:
    rows = []
    here = {each.method: each for each in places}
    for method in ordered(here):
        row = [look(method).label]
        for delay in (TTFT, TBT):
            found = spent(measured, here[method], delay)
            row += (
                [MISSING] * 6
                if found is None
                else [number(1e3 * each) for each in (found.whole, *found.parts.values())]
            )
        rows.append(row)
    return table(
        [
            "method",
            *(
                f"{each}{', ms' * (each in ('TTFT', 'TBT'))}"
                for delay in ("TTFT", "TBT")
                for each in (delay, *PARTS, "rest")
            ),
        ],
        rows,
    )


STEPS_DOWN: Sequence[tuple[str, str, str]] = (
    ("U-shape, all rows down", "rates", "ushape-full"),
    ("download of the last row only", "rates", "ushape"),
    ("prompt chunks", "chunks", "chunk-auto"),
    ("the paper's drafting", "rates", "hat-paper"),
    ("our drafting and scheduling", "rates", "hat-plain"),
    ("rows packed: HAT, ours", "rates", "hat"),
)
"""From U-shape to HAT: what is added, and where that was measured. What was not is passed over."""


def gains(measured: Measured, setting: str, dataset: str) -> str:
    """What each choice takes away on top of those above it, at the middle rate."""
    rate = measured.middle_rate(setting, dataset) or 0.0
    steps = [(said, Place(at, setting, dataset, method, rate)) for said, at, method in STEPS_DOWN]
    steps = [(said, place) for said, place in steps if measured.repeats(place)]
    rows = []
    for number_, (said, place) in enumerate(steps):
        row = [said]
        for name in (TTFT, TBT):
            before = measured.ratio(place, steps[number_ - 1][1], name) if number_ else None
            row += [milliseconds(measured.spread(place, name)), percent_below(before)]
        rows.append(row)
    heads = [f"{each}{said}" for each in ("TTFT", "TBT") for said in (", ms", ": % below the line above")]
    return f"{table(['with', *heads], rows)}\n\n{rests_on(measured, [place for _, place in steps])}"
