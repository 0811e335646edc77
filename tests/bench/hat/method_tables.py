"""Markdown tables of what single choices do: Tables 4 and 5, round trips, the parts of the gain, and the goals."""

from __future__ import annotations

from collections.abc import Sequence

from bench.hat import paper
from bench.hat.gains import REST, Gain
from bench.hat.goals import ROUND_TRIPS
from bench.hat.judging import Goal
from bench.hat.looks import BASELINES, dataset_label, look, ordered, setting_label
from bench.hat.records import BOUND, SENT, Place
from bench.hat.shown import MISSING, around, milliseconds, number, percent_below
from bench.hat.summary import DECODE_TOKENS_S, MEANS, STEP, TBT, TOKENS_S, TTFT, Measured, Spread
from bench.hat.trained import parameters
from bench.page import table

TAU = "latency.tau"
IN_DOUBT = " (in doubt)"
"""Behind a choice that rests on a run in which the machine itself was short, or of another speed."""


def speculation(measured: Measured, setting: str, dataset: str) -> str:
    """Table 4: one device at a time. Speedup is how many times as fast as U-shape a token comes while decoding."""
    here = {each.method: each for each in measured.select(experiment="single", setting=setting, dataset=dataset)}
    base = here.get("ushape-full") or here.get("ushape")
    rows = []
    for method in ordered(here):
        name = paper.BASE if method == "ushape" else paper.SAME.get(method, method)
        theirs = paper.TABLE_4.get(dataset, {}).get(name)
        faster = None if base is None else measured.ratio(base, here[method], TBT)
        rows.append(
            [
                look(method).label,
                around(measured.spread(here[method], TAU), digits=2),
                f"{theirs.accept:.2f}" if theirs else MISSING,
                around(faster, digits=2),
                f"{theirs.speedup:.2f}" if theirs else MISSING,
                milliseconds(measured.spread(here[method], TBT)),
                _millions(parameters(method) if setting == "demo" else None),
                _millions(theirs.parameters if theirs else None),
            ]
        )
    columns = ["method", "τ", "paper: accept", "speedup", "paper: speedup"]
    columns += [f"{MEANS['TBT']}, ms", "trained parameters", "paper: trained parameters"]
    return table(columns, rows)


def _millions(count: int | None) -> str:
    return f"{number(count / 1e6)} M" if count else MISSING


def ablation(measured: Measured, setting: str, dataset: str) -> str:
    """Table 5: each strategy, how far below none of them, and what a step and a round were then."""
    columns = [
        "strategies", f"{MEANS['TTFT']}, ms", "% below none", "paper: TTFT, ms", "% below none",
        f"{MEANS['TBT']}, ms", "% below none", "paper: TBT, ms", "% below none", "step, ms", "rows a step", "τ",
    ]  # fmt: skip
    places = measured.select(experiment="ablation", setting=setting, dataset=dataset)
    rows = []
    for rate in sorted({each.rate for each in places}):
        here = {each.method: each for each in places if each.rate == rate}
        for method in ordered(here):
            row = [look(method).label]
            for name, kind in ((TTFT, "ttft_ms"), (TBT, "tbt_ms")):
                none = here.get("none")
                row.append(milliseconds(measured.spread(here[method], name)))
                ratio = measured.ratio(here[method], none, name) if none and method != "none" else None
                row.append(percent_below(ratio))
                row += _paper_ablation(dataset, method, kind)
            row.append(milliseconds(measured.spread(here[method], STEP)))
            row.append(around(measured.spread(here[method], "cloud.rows_mean")))
            row.append(around(measured.spread(here[method], TAU), digits=2))
            rows.append(row)
    return table(columns, rows)


def _paper_ablation(dataset: str, method: str, kind: str) -> list[str]:
    theirs = paper.TABLE_5.get(dataset, {})
    if method not in theirs:
        return [MISSING, MISSING]
    value, none = (getattr(theirs[each], kind) for each in (method, "none"))
    return [f"{value:.1f}", MISSING if method == "none" else f"{100 * (1 - value / none):.1f}"]


def round_trips(measured: Measured, setting: str, dataset: str) -> str:
    """Tokens a second against the round trip, and the share of the method's own at 0 ms: decoding, and in all."""
    places = measured.select(experiment="rtt", setting=setting, dataset=dataset)
    rows = []
    for rtt_ms in sorted({each.rtt_ms for each in places}):
        here = {each.method: each for each in places if each.rtt_ms == rtt_ms}
        for method in ordered(here):
            near = Place("rtt", setting, dataset, method, here[method].rate)
            row = [f"{rtt_ms:g}", look(method).label]
            for name in (DECODE_TOKENS_S, TOKENS_S):
                row.append(around(measured.spread(here[method], name)))
                row.append(around(measured.ratio(here[method], near, name), digits=2) if rtt_ms else MISSING)
                if name == DECODE_TOKENS_S:
                    goal = rtt_ms in ROUND_TRIPS and method == "hat"
                    row.append(f"{ROUND_TRIPS[rtt_ms]:g}" if goal else MISSING)
            row += [milliseconds(measured.spread(here[method], name)) for name in (TTFT, TBT)]
            rows.append(row)
    columns = ["round trip, ms", "method", "tokens/s while decoding", "of its own at 0 ms", "goal"]
    columns += ["tokens/s of whole answers", "of its own at 0 ms", *(f"{each}, ms" for each in MEANS.values())]
    return table(columns, rows)


def unloaded(measured: Measured, setting: str, dataset: str) -> str:
    """One device and nobody else: the first token against what the upload alone must take."""
    here = {each.method: each for each in measured.select(experiment="unloaded", setting=setting, dataset=dataset)}
    rows = [
        [
            look(method).label,
            milliseconds(measured.spread(here[method], TTFT)),
            *(
                cell
                for bound in (BOUND, SENT)
                for cell in (
                    milliseconds(measured.spread(here[method], bound)),
                    around(measured.ratio(here[method], here[method], TTFT, under=bound), digits=2),
                )
            ),
        ]
        for method in ordered(here)
    ]
    columns = ["method", f"{MEANS['TTFT']}, ms", "upload of rows as they are, ms", "TTFT / that"]
    return table([*columns, "upload of what it sends, ms", "TTFT / that"], rows)


def details(measured: Measured, setting: str, dataset: str) -> str:
    """All other figures at the middle rate."""
    here = measured.middle(setting, dataset)
    base = here.get("ushape") or here.get(paper.BASE)
    rows = []
    for method in ordered(here):
        place = here[method]
        quantiles = [
            " / ".join(
                milliseconds(_middle_only(measured.spread(place, f"latency.{delay}.{at}")))
                for at in ("p50", "p90", "p99")
            )
            for delay in ("ttft", "tbt")
        ]
        rows.append(
            [
                look(method).label,
                *quantiles,
                around(measured.spread(place, TOKENS_S)),
                around(measured.spread(place, "latency.goodput")),
                around(measured.spread(place, TAU), digits=2),
                *(around(_a_token(measured, place, f"cloud.{way}_bytes"), 1e-3) for way in ("up", "down")),
                around(measured.spread(place, "machine.busy_median"), digits=2),
                "{} of {}".format(*measured.failed([place])),
                _same(measured, place, base),
            ]
        )
    columns = [
        "method", "TTFT of requests, p50 / p90 / p99, ms", "TBT of single tokens, p50 / p90 / p99, ms", "tokens/s",
        "goodput, requests/s", "τ", "kB up / generated token", "kB down / generated token", "machine busy", "failed",
        "same text as U-shape",
    ]  # fmt: skip
    return table(columns, rows)


def _same(measured: Measured, place: Place, base: Place | None) -> str:
    same, asked = measured.same_texts(place, base) if base is not None and base != place else (0, 0)
    return f"{same} of {asked}" if asked else MISSING


def _middle_only(found: Spread | None) -> Spread | None:
    return None if found is None else Spread(found.median, found.median, found.median, 1)


def _a_token(measured: Measured, place: Place, name: str) -> Spread | None:
    return measured.ratio(place, place, name, under="latency.tokens")


def parts(found: Sequence[Gain]) -> str:
    """What in the gain comes from which choice along one chain: TTFT and TBT side by side, shares of the whole gain."""
    by_delay = {each.delay: each for each in found}
    columns = ["choice"]
    for delay in by_delay:
        columns += [f"{MEANS[delay]}: ms less", "% of what was there before it", "% of the whole gain"]
    choices = dict.fromkeys(choice for each in found for choice in each.choices)
    rest = [REST] if any(term.choice == REST for each in found for term in each.terms) else []
    rows = []
    for choice in [*choices, *rest]:
        row = ["what these leave over" if choice == REST else choice]
        for each in by_delay.values():
            term = next((term for term in each.terms if term.choice == choice), None)
            row[0] += IN_DOUBT * bool(term and term.doubted and not row[0].endswith(IN_DOUBT))
            row += [
                milliseconds(term.seconds if term else None),
                around(term.own_percent if term else None, digits=1),
                around(term.share_percent if term else None, digits=1),
            ]
        rows.append(row)
    whole = ["all: U-shape, all rows down, to HAT"]
    for each in by_delay.values():
        whole += [milliseconds(each.whole), around(each.below, digits=1), "100" if each.shared else MISSING]
    return table(columns, [*rows, whole])


def headline(measured: Measured) -> str:
    """HAT against what it is compared with, at the middle rates; '' where nothing was measured there."""
    rows = []
    for setting, dataset in measured.pairs():
        here = measured.middle(setting, dataset)
        if "hat" not in here:
            continue
        row = [dataset_label(dataset), setting_label(setting).split(",")[0]]
        for name in (TTFT, TBT):
            for base in (paper.BASE, "ushape"):
                ratio = measured.ratio(here["hat"], here[base], name) if base in here else None
                row.append(percent_below(ratio))
        others = {base: measured.ratio(here["hat"], here[base], TBT) for base in BASELINES if base in here}
        known = {base: ratio for base, ratio in others.items() if ratio is not None}
        nearest = max(known, key=lambda base: known[base].median, default="")
        rows.append([*row, f"{look(nearest).label}: {percent_below(known[nearest])}" if nearest else MISSING])
    columns = ["prompts", "model"]
    columns += [f"{delay}: % below {of}" for delay in ("TTFT", "TBT") for of in ("U-shape, all rows down", "last row")]
    return table([*columns, "TBT: % below the nearest of all baselines"], rows) if rows else ""


def goals(judged: Sequence[Goal]) -> str:
    """Goals met and missed."""
    columns = ["prompts", "model", "goal", "wanted", "measured", "verdict", "beside it"]
    rows = [
        [
            dataset_label(goal.dataset), setting_label(goal.setting).split(",")[0], goal.name, goal.wanted,
            goal.measured, f"**{goal.said}**", "; ".join(goal.notes) or MISSING,
        ]
        for goal in judged
    ]  # fmt: skip
    return table(columns, rows)
