"""The terms methods were compared on: lengths of prompts beside Table 3, links, devices, limits of goodput."""

from __future__ import annotations

from bench.hat import paper
from bench.hat.latency import DECODE_SLA_S, PREFILL_SLA_S
from bench.hat.lengths import DATASETS, POSITIONS, Dataset, describe, draw
from bench.hat.looks import dataset_label, setting_label
from bench.hat.prompts import TOLERANCE
from bench.hat.records import Record
from bench.hat.setups import declared
from bench.hat.shown import MISSING, around, between, number
from bench.hat.summary import TBT, Measured
from bench.hat.tables import span
from bench.page import table

RATIOS = ("upload_ms", "base_ms", "chunk_ms", "upload_per_step", "upload_per_base", "row_per_base")
RATIO_LABELS = (
    "upload of a row, ms", "step that decodes, ms", "step with a chunk, ms", "upload / step with a chunk",
    "upload / step that decodes", "a row more / step that decodes",
)  # fmt: skip


def prompt_lengths(measured: Measured) -> str:
    """A row for each number of prompts that was drawn: their figures, and those of the paper's Table 3."""
    uses: dict[tuple[str, int, int], list[Record]] = {}
    for place in measured.places:
        for record in measured.repeats(place).values():
            if record.requests:
                uses.setdefault((place.dataset, record.requests, record.tokens), []).append(record)
    rows = []
    for (name, requests, tokens), records in sorted(uses.items(), key=lambda each: (each[0][0], -each[0][1])):
        served = [known for each in records if (known := each.numbers.get("latency.prompt_tokens"))]
        where = sorted({f"{each.place.experiment}{' (200 M)' * (each.place.setting == 'wide')}" for each in records})
        rows.append(
            [
                dataset_label(name),
                ", ".join(where),
                str(requests),
                str(tokens),
                *(_drawn(DATASETS[name], requests, tokens) if name in DATASETS else [MISSING] * 4),
                between(served, 1),
            ]
        )
    columns = [
        "prompts", "experiments", "requests of a repeat", "most tokens of an answer", "mean, ours / Table 3",
        "P90, ours / Table 3",
        "std, ours / Table 3", "cut to the model's room", "mean as served",
    ]  # fmt: skip
    return table(columns, rows) if rows else ""


def _drawn(dataset: Dataset, requests: int, tokens: int) -> list[str]:
    """Mean, P90 and std beside Table 3's, and how many prompts were cut; real prompts are not drawn to be like it."""
    most = POSITIONS - tokens - TOLERANCE
    drawn = describe(dataset, draw(dataset, requests, 0, most), most)
    both = ((drawn.mean, dataset.mean), (drawn.p90, dataset.p90), (drawn.std, dataset.std))
    return [*(f"{number(ours, 1)} / {number(theirs, 1)}" for ours, theirs in both), str(drawn.clipped)]


def installations(measured: Measured) -> str:
    """What each model is served on, as its scenario declares it."""
    rows = []
    for setting in sorted({each.setting for each in measured.places}):
        hosts = declared(setting).hosts
        devices = [each for each in hosts if each.kind == "device"]
        cloud = next(each for each in hosts if each.kind == "cloud")
        modes = " / ".join(f"{each:g}" for each in devices[0].modes)
        label = setting_label(setting).split(",")[0]
        rows.append([label, str(len(devices)), modes, f"{cloud.cores:g}"])
        if setting == "demo" and measured.select(setting=setting, method="cloud"):
            front = next(each for each in declared(setting, sends_text=True).hosts if each.name == "front")
            row = [f"{label}, text sent", "none", f"beside the cloud, for gateway and head: {front.cores:g}"]
            rows.append([*row, f"{cloud.cores:g}"])
    return table(["model", "devices", "cores of a device, by mode", "cores of the cloud"], rows)


def ratios(measured: Measured) -> str:
    """Every time and ratio that links were scaled by, ours and the paper's."""
    rows = []
    for setting, dataset in measured.pairs():
        places = measured.select(setting=setting, dataset=dataset)
        row = [dataset_label(dataset), setting_label(setting).split(",")[0]]
        for name in RATIOS:
            row.append(" / ".join(span(measured, places, f"scaling.{whose}_{name}") for whose in ("our", "paper")))
        rows.append(row)
    return table(["prompts", "model", *(f"{label}, ours / paper" for label in RATIO_LABELS)], rows)


def drafted_tokens(measured: Measured) -> str:
    """How fast devices are beside the cloud: what a drafted token adds to a round, over a whole token of U-shape's."""
    rows = []
    for setting, dataset in measured.pairs():
        alone = measured.select(experiment="single", setting=setting, dataset=dataset)
        here = {each.method: each for each in alone} or measured.middle(setting, dataset)
        if not {"ushape", "hat-paper"} <= here.keys():
            continue
        ours = measured.over_repeats([here["ushape"], here["hat-paper"]], _drafted_token)
        theirs = paper.TABLE_4.get(dataset, {}).get("hat")
        most = MISSING if theirs is None else number((theirs.accept / theirs.speedup - 1) / (theirs.accept - 1), 2)
        where = "one device" if alone else "middle rate"
        rows.append([dataset_label(dataset), setting_label(setting).split(",")[0], where, around(ours, digits=2), most])
    columns = ["prompts", "model", "measured at", "HAT as in the paper, ours", "the paper's, at most"]
    return table(columns, rows) if rows else ""


def _drafted_token(plain: Record, drafting: Record) -> float | None:
    """A round takes as many of U-shape's tokens as it brings over how many times as fast they come, as in Table 4."""
    names = ("tau", "tokens", "proposed", "requests", "failed")
    tau, tokens, proposed, requests, failed = (drafting.numbers.get(f"latency.{name}", 0.0) for name in names)
    plain_s = plain.numbers.get(TBT)
    if not (tau and proposed and plain_s and TBT in drafting.numbers):
        return None
    rounds = (tokens - (requests - failed)) / tau  # The first token of an answer is of no round.
    return (tau * drafting.numbers[TBT] / plain_s - 1) * rounds / proposed


def goodput_limits(measured: Measured) -> str:
    """What goodput asks of a request, a row for each model and prompts."""
    rows = []
    for setting, dataset in measured.pairs():
        places = measured.select(experiment="rates", setting=setting, dataset=dataset)
        row = [dataset_label(dataset), setting_label(setting).split(",")[0]]
        for limit_s, step in ((PREFILL_SLA_S, "chunk_ms"), (DECODE_SLA_S, "base_ms")):
            over = (measured.ratio(each, each, f"scaling.our_{step}", f"scaling.paper_{step}") for each in places)
            longer = sorted(each.median for each in over if each is not None)
            row.append(number(1e3 * limit_s * longer[len(longer) // 2]) if longer else MISSING)
        if places:
            rows.append(row)
    columns = ["prompts", "model", "TTFT for 128 prompt tokens, ms", "10 tokens behind the first, ms"]
    return table(columns, rows) if rows else ""
