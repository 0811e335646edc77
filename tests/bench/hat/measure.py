"""Measures cells: each is a load on a served method, and a record in a file of its own, so that what is there stays."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from bench.hat.breakdown import breakdown
from bench.hat.cells import Cell
from bench.hat.conditions import conditions
from bench.hat.latency import DECODE_SLA_S, PREFILL_SLA_S, Latency, Record, decode_unit, goodput, latency, prefill_unit
from bench.hat.methods import METHODS
from bench.hat.records import DATE
from bench.hat.scaling import CHUNK_ROWS, PAPER, Costs, Reference, ScaledLink, ratios, scaled_link
from bench.hat.serving import Counted, Processes, Serving
from bench.hat.setups import Setup
from bench.page import ROOT, machine
from bench.testbed.changes import Changes, schedule_of
from bench.testbed.machine import MachineWatch

ARRIVALS_SEED: Final = 7
"""The same arrivals for every method of a repeat."""

CALIBRATION_PROMPTS: Final = 3
CALIBRATION_ROUNDS: Final = 3
SHORT_PROMPT: Final = 32


def processes_of(cell: Cell, setup: Setup) -> Processes:
    """What has to run for a cell."""
    method = METHODS[cell.method]
    device = tuple(setup.device_flags(method))
    sends_text = method.mode == "cloud"
    relayed, cores = cell.experiment == "rtt", setup.cores_of(cell)
    return Processes(device, tuple(method.cloud(cell.dataset)), cell.stages, relayed, sends_text, cores)


def calibrated(setup: Setup, cache: Path, folder: Path) -> Costs:
    """What steps of this model's cloud take under its quota, measured once and then read from ``cache``."""
    file = cache / f"calibration-{setup.name}.json"
    of = calibration_of(setup)
    if file.is_file():
        known = json.loads(file.read_text(encoding="utf-8"))
        if known["of"] == of:
            return Costs(setup.row_bytes, known["base_s"], known["chunk_s"])
    device = ("--mode", "hat", "--draft", "none", "--chunk", str(CHUNK_ROWS))
    with Serving(setup, Processes(device, ()), folder) as serving:
        serving.warm()
        long = setup.texts([CHUNK_ROWS * 8] * CALIBRATION_PROMPTS, 1)
        short = setup.texts([SHORT_PROMPT] * 4, 2)
        rounds = range(CALIBRATION_ROUNDS)
        bases = [_counted(serving, lambda: serving.load(short, [0.0] * 4, 64, closed=4)) for _ in rounds]
        chunks = [_counted(serving, lambda: serving.load(long, [0.0] * len(long), 1, closed=1)) for _ in rounds]
    base_s, chunk_s = (statistics.median(each.step_mean_s for each in found) for found in (bases, chunks))
    file.write_text(json.dumps({"of": of, "base_s": base_s, "chunk_s": chunk_s}))
    return Costs(setup.row_bytes, base_s, chunk_s)


def calibration_of(setup: Setup) -> dict[str, Any]:
    """What a calibration holds for. On the same machine it stays, from one day to the next: links must not change while
    cells that are compared are measured, and a machine's speed on one day is not its speed of all others either."""
    return {"model": str(setup.model), "cores": setup.cloud_cores, "machine": DATE.sub("", machine())}


def _counted(serving: Serving, load: Callable[[], object]) -> Counted:
    before = serving.counted()
    load()
    return serving.counted().since(before)


def costs_of(cell: Cell, setup: Setup, costs: Costs) -> Costs:
    """What steps take in a cell whose cloud has another quota than the one that ``costs`` were measured under."""
    return costs.slower(setup.cloud_cores / setup.cores_of(cell))


def link_of(cell: Cell, setup: Setup, costs: Costs) -> ScaledLink:
    """The link of every device in a cell."""
    return scaled_link(paper_of(cell), costs_of(cell, setup, costs))


def measure(serving: Serving, cell: Cell, costs: Costs, sent: Callable[[int], None]) -> dict[str, Any]:
    """A cell's record."""
    setup, bed = serving.setup, serving.bed
    paper, link, costs = paper_of(cell), link_of(cell, setup, costs), costs_of(cell, setup, costs)
    scenario = conditions(bed.scenario, cell, link)
    serving.set_links(link.up_bytes_s, link.down_bytes_s, cell.rtt_ms)
    serving.reset_modes()
    prompts = setup.prompts(cell)
    due = [0.0] * len(prompts) if cell.rate == 0 else poisson(cell.rate, len(prompts), ARRIVALS_SEED + cell.repeat)
    quotas = {host.name: bed.host(host.name).cores for host in scenario.hosts}
    began, before, bytes_before = datetime.now(timezone.utc), serving.counted(), serving.wan_bytes()
    watch = MachineWatch(quotas, lambda: {name: bed.usage(name) for name in quotas})
    changes = Changes(bed, schedule_of(scenario, cell.repeat))
    with ExitStack() as stack:

        def begun() -> None:
            stack.enter_context(watch)
            stack.enter_context(changes)

        def told(count: int) -> None:
            changes.requests_made(count)
            sent(count)

        closed = int(cell.rate == 0)
        records = serving.load(prompts, due, cell.tokens, closed=closed, sent=told, began=begun)
    if not any(record.complete for record in records):
        raise RuntimeError(f"no request was answered: {records[0].error}")
    counted = serving.counted().since(before)
    up_bytes, down_bytes = (after - first for after, first in zip(serving.wan_bytes(), bytes_before, strict=True))
    return {
        "cell": cell.as_dict(),
        "link": {"up_mb_s": link.up_bytes_s / 1e6, "down_mb_s": link.down_bytes_s / 1e6},
        "scaling": {**ratios(paper, costs, link), "row_bytes": costs.row_bytes},
        "latency": latency_table(records, costs.chunk_s / paper.costs.chunk_s, costs.base_s / paper.costs.base_s),
        **breakdown(records),
        "cloud": {**counted.as_dict(), "up_bytes": up_bytes, "down_bytes": down_bytes},
        "machine": {"name": machine(), **asdict(watch.report())},
        **upload_bound(cell, records, link, costs),
        "texts": {str(record.id): record.text_digest for record in records},
        "errors": sorted({record.error for record in records if record.error}),
        "began": began.isoformat(timespec="seconds"),
        "commit": commit(),
    }


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """``count`` arrivals of a Poisson process of ``rate`` a second, given that so many come in ``count / rate`` s.

    Under this condition arrivals are as uniform draws are, in order. So few requests already have the rate that is
    written above their figures, while gaps are as irregular as chance makes them. Raises ValueError for a rate that is
    not above 0.
    """
    if not rate > 0:
        raise ValueError(f"the rate of arrivals is {rate} a second; it must be above 0")
    noise = random.Random(seed)
    return sorted(noise.uniform(0.0, count / rate) for _ in range(count))


def latency_table(records: Sequence[Record], prefill: float = 1.0, decode: float = 1.0) -> dict[str, Any]:
    """What clients saw, for the record; of times nobody saw, 0.

    prefill, decode: scale the limits of goodput.
    """
    found: Latency = latency(records)
    answered = [record for record in records if record.complete]
    decoded = [record for record in answered if record.tokens > 1]
    return {
        "requests": found.requests,
        "failed": found.failed,
        "ttft": asdict(found.ttft),
        "tbt": {**asdict(found.tbt_token), "mean": found.tbt_request.mean},
        "prefill_sla": sorted(map(prefill_unit, answered)),
        "decode_sla": sorted(map(decode_unit, decoded)),
        "late": asdict(found.late),
        "tokens": found.tokens,
        "tokens_s": found.tokens_s,
        "decode_tokens_s": 1 / found.tbt_request.mean if found.tbt_request.mean else 0.0,
        "goodput": goodput(records, prefill * PREFILL_SLA_S, decode * DECODE_SLA_S),
        "prompt_tokens": statistics.fmean(record.prompt_tokens for record in answered) if answered else 0.0,
        "proposed": found.proposed,
        "accepted": found.accepted,
        "tau": found.tau,
    }


def paper_of(cell: Cell) -> Reference:
    """The paper's model and link for a cell's data set."""
    return PAPER["cnndm" if cell.dataset == "cnndm" else "specbench"]


def commit() -> str:
    """Of this repository; empty where there is none."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else ""


def upload_bound(cell: Cell, records: Sequence[Record], link: ScaledLink, costs: Costs) -> dict[str, float]:
    """What the upload of a prompt takes at least, on a link that does not change; nothing where none was answered."""
    answered = [record.prompt_tokens for record in records if record.complete]
    if cell.experiment != "unloaded" or not answered:
        return {}
    return {"upload_bound_s": statistics.fmean(answered) * costs.row_bytes / link.up_bytes_s}
