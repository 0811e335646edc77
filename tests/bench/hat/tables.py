"""Markdown tables, one for each figure and table of the paper, each row with the paper's figure beside ours.

Absolute times differ, since models, machines and links do: what is compared is how far each is below U-shape. A rate of
the paper stands in the row of our middle rate, and names itself where it is another one. Spread is the range of the
repeats, or their quartiles from five on.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from bench.hat import paper
from bench.hat.lengths import DATASETS, POSITIONS, draw
from bench.hat.looks import look, ordered
from bench.hat.prompts import TOLERANCE
from bench.hat.records import Place, Record
from bench.hat.shown import MISSING, around, between, milliseconds, number, percent_below
from bench.hat.summary import MEANS, STEP, STEP_STD, TBT, TTFT, Measured, Spread, compliance, met_by
from bench.page import table

RATIOS = {
    "upload_per_step": "upload of a row / step of the cloud with a chunk",
    "row_per_base": "a row more / step that decodes",
}


BASES = {"ushape-full": "% below U-shape, all rows", "ushape": "% below last row"}
"""What methods are held against, and the columns' heads."""


def conditions(measured: Measured, places: Sequence[Place]) -> str:
    """The line above a table: cores, link, the ratios with the paper's, repeats and failures."""
    records = [record for place in places for record in measured.repeats(place).values()]
    repeats = sorted({len(measured.repeats(place)) for place in places})
    link = [span(measured, places, f"link.{name}") for name in ("up_mb_s", "down_mb_s")]
    parts = [f"link {link[0]} MB/s up, {link[1]} down"]
    for name, meaning in RATIOS.items():
        theirs, ours = (span(measured, places, f"scaling.{whose}_{name}") for whose in ("paper", "our"))
        parts.append(f"{meaning}: {ours} (paper: {theirs})")
    given, cores = (span(measured, places, f"machine.{each}", at) for each, at in (("quota_cores", 2), ("cores", 0)))
    parts.append(f"{given} of {cores} cores given to hosts")
    parts.append(f"repeats: {' to '.join(str(each) for each in dict.fromkeys((repeats[0], repeats[-1])))}")
    failed, requests = measured.failed(places)
    parts.append(f"failed requests: {failed} of {requests}")
    if short := measured.bottlenecks(places):
        parts.append(f"the machine itself was short in {len(short)} of {len(records)} runs")
    text = "; ".join(parts)
    return f"*{text[:1].upper()}{text[1:]}.*"


def span(measured: Measured, places: Sequence[Place], name: str, digits: int | None = None) -> str:
    """The lowest and highest a number has in these places, or one where they are the same."""
    return between([value for place in places for value in measured.numbers(place, name).values()], digits)


def rates(measured: Measured, setting: str, dataset: str) -> str:
    """Figures 6 and 7: delays against the rate of requests."""
    return _delays(measured, measured.select(experiment="rates", setting=setting, dataset=dataset), "rate")


def chunks(measured: Measured, setting: str, dataset: str) -> str:
    """What the number of a prompt's chunks alone is worth: no drafts, rows as they are, the last row downloaded."""
    rate = measured.middle_rate(setting, dataset)
    whole = Place("rates", setting, dataset, "ushape", rate or 0.0)
    places = {"ushape": whole} if measured.repeats(whole) else {}
    places |= {each.method: each for each in measured.select(experiment="chunks", setting=setting, dataset=dataset)}
    rows = []
    for method in ordered(places):
        place = places[method]
        row = ["whole prompts (U-shape)" if method == "ushape" else look(method).label, _chunk_count(measured, place)]
        for name in (TTFT, TBT):
            row.append(milliseconds(measured.spread(place, name)))
            row.append(_below(measured, places.get("ushape"), place, name))
        rows.append([*row, *(milliseconds(measured.spread(place, name)) for name in (STEP, STEP_STD))])
    columns = ["prompts", "chunks of a prompt, mean"]
    columns += [each for title in MEANS.values() for each in (f"{title}, ms", "% below whole")]
    return table([*columns, "step, ms", "std, ms"], rows)


def _chunk_count(measured: Measured, place: Place) -> str:
    """Of chunks of a fixed size; how the cloud advised is in no record."""
    size = place.method.removeprefix("chunk-")
    lengths = {each.requests: each.tokens for each in measured.repeats(place).values()}
    if place.method == "ushape":
        return "1"
    if not size.isdigit() or place.dataset not in DATASETS:
        return MISSING
    [(requests, tokens), *_] = lengths.items()
    drawn = draw(DATASETS[place.dataset], requests, 0, POSITIONS - tokens - TOLERANCE)
    return number(fmean(-(-each // int(size)) for each in drawn), 1)


def stages(measured: Measured, setting: str, dataset: str) -> str:
    """Figures 11 and 12: delays against the length of the cloud's pipeline."""
    return _delays(measured, measured.select(experiment="stages", setting=setting, dataset=dataset), "stages")


def others(measured: Measured, experiment: str, setting: str, dataset: str) -> str:
    """Delays of an experiment the paper does not have: bandwidth traces, real prompts, arrivals of a trace."""
    field = "trace" if experiment == "traces" else "rate"
    return _delays(measured, measured.select(experiment=experiment, setting=setting, dataset=dataset), field)


def _delays(measured: Measured, places: Sequence[Place], field: str) -> str:
    heads = {"rate": "requests/s", "stages": "stages", "trace": "bandwidth trace"}
    columns = [heads[field], "method"]
    paper_has = all(each.experiment in ("rates", "stages") for each in places)
    bases = [name for name in BASES if any(place.method == name for place in places)]
    for delay in ("TTFT", "TBT"):
        columns += [f"{MEANS[delay]}, ms", *(BASES[name] for name in bases)]
        columns += [f"paper: {delay}, % below"] * paper_has
    columns += ["τ", "tokens of an answer"] * (not paper_has)
    rows = []
    for at in sorted({getattr(each, field) for each in places}):
        here = {each.method: each for each in places if getattr(each, field) == at}
        for method in ordered(here):
            row = [at if isinstance(at, str) else f"{at:g}", look(method).label]
            for delay, name in (("ttft", TTFT), ("tbt", TBT)):
                row.append(milliseconds(measured.spread(here[method], name)))
                for base in bases:
                    row.append(_below(measured, here.get(base), here[method], name))
                if paper_has:
                    row.append(_paper_below(measured, here[method], delay))
            if not paper_has:
                row.append(around(measured.spread(here[method], "latency.tau"), digits=2))
                row.append(around(measured.over_repeats([here[method]], _tokens_of_an_answer), digits=0))
            rows.append(row)
    return table(columns, rows)


def _tokens_of_an_answer(record: Record) -> float | None:
    tokens, requests, failed = (record.numbers.get(f"latency.{each}", 0.0) for each in ("tokens", "requests", "failed"))
    return tokens / (requests - failed) if requests > failed else None


def _below(measured: Measured, base: Place | None, place: Place, name: str) -> str:
    return MISSING if base is None or base == place else percent_below(measured.ratio(place, base, name))


def _paper_below(measured: Measured, place: Place, delay: str) -> str:
    """What the paper has for this row, with its rate or pipeline length."""
    if place.method == paper.BASE:
        return MISSING
    if place.experiment == "rates":
        if place.rate != measured.middle_rate(place.setting, place.dataset):
            return MISSING
        found = paper.below_base((*paper.FIGURE_6, *paper.FIGURE_7), place.dataset, place.method, delay)
        return f"{found.percent:.1f} at {found.at:g}/s" if found else MISSING
    if place.experiment == "stages":
        found = paper.below_base((*paper.FIGURE_11, *paper.FIGURE_12), place.dataset, place.method, delay)
        return f"{found.percent:.1f}" if found and found.at == place.stages else MISSING
    return MISSING


def steps(measured: Measured, setting: str, dataset: str) -> str:
    """Figure 8: what a step of the cloud takes, and how evenly, at the middle rate."""
    columns = ["method", "step, ms", "std, ms", "std / mean", "rows a step", "std / U-shape's, all rows"]
    columns += ["paper: one of four GPUs, ms", "std, ms", "std / U-shape's"]
    rows = []
    here = measured.middle(setting, dataset)
    for method in ordered(here):
        theirs = [paper.value(paper.FIGURE_8, dataset, method, name) for name in ("step_ms", "step_std_ms")]
        base = paper.value(paper.FIGURE_8, dataset, paper.BASE, "step_std_ms")
        over = f"{theirs[1].value / base.value:.2f}" if theirs[1] and base else MISSING
        full = here.get(paper.BASE)
        rows.append(
            [
                look(method).label,
                *(milliseconds(measured.spread(here[method], name)) for name in (STEP, STEP_STD)),
                around(measured.ratio(here[method], here[method], STEP_STD, under=STEP), digits=2),
                around(measured.spread(here[method], "cloud.rows_mean")),
                MISSING if full is None else around(measured.ratio(here[method], full, STEP_STD), digits=2),
                *(f"{each.value:.1f}" if each else MISSING for each in theirs),
                over,
            ]
        )
    return table(columns, rows)


def slas(measured: Measured, setting: str, dataset: str) -> str:
    """Figures 9 and 10: prefill by what HAT's slowest request meets, decode by what half or nine of ten meet."""
    figure, share = (paper.FIGURE_10, 0.9) if dataset == "cnndm" else (paper.FIGURE_9, 0.5)
    within = next((each.at for each in figure if each.quantity == "compliance_percent"), 0.0)
    columns = [
        "method", "% within the slowest of HAT's, prefill", f"paper: % within {within:g} ms",
        f"decode SLA met by {share:.0%}, ms", "% below U-shape, all rows", "paper: ms", "% below",
    ]  # fmt: skip
    here, rows = measured.middle(setting, dataset), []
    for method in ordered(here):
        place, hat, full = here[method], here.get("hat"), here.get(paper.BASE)
        met = _within(measured, place, hat)
        decode = measured.over_repeats([place], lambda record: met_by(record, "decode", share))
        ratio = measured.over_repeats([place, full], lambda ours, base: _over(ours, base, share)) if full else None
        theirs = [paper.value(figure, dataset, method, name) for name in ("compliance_percent", "decode_sla_ms")]
        base = paper.value(figure, dataset, paper.BASE, "decode_sla_ms")
        rows.append(
            [
                look(method).label,
                around(met, 100, digits=1),
                f"{theirs[0].value:.1f}" if theirs[0] else MISSING,
                milliseconds(decode),
                MISSING if method == paper.BASE else percent_below(ratio),
                f"{theirs[1].value:.1f}" if theirs[1] else MISSING,
                f"{100 * (1 - theirs[1].value / base.value):.1f}"
                if theirs[1] and base and method != paper.BASE
                else MISSING,
            ]
        )
    return table(columns, rows)


def _within(measured: Measured, place: Place, hat: Place | None) -> Spread | None:
    """The share that meets the strictest prefill SLA that all of HAT's requests of the repeat meet."""
    if hat is None:
        return None
    return measured.over_repeats(
        [place, hat], lambda ours, best: compliance(ours, "prefill", best.prefill_sla[-1]) if best.prefill_sla else None
    )


def _over(ours: Record, base: Record, share: float) -> float | None:
    first, second = met_by(ours, "decode", share), met_by(base, "decode", share)
    return first / second if first is not None and second else None
