"""Measures cells of llama.cpp's RPC split, in records of the same form as the other methods' (``measure.py``).

It answers one request at a time, so it has cells only where one device is measured alone. What differs from the others:
its weights are float16 and theirs bfloat16; requests are handed to the device as token ids, without a gateway; and an
answer goes on behind its end, to as many tokens as the cell allows, which changes no time of a token.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from bench.hat.cells import Cell
from bench.hat.latency import Record
from bench.hat.llama_split import Answer, LlamaSplit
from bench.hat.measure import commit, latency_table, link_of, paper_of, upload_bound
from bench.hat.scaling import Costs, ratios
from bench.page import machine
from bench.testbed.machine import MachineWatch


def measure_llama(split: LlamaSplit, cell: Cell, costs: Costs, sent: Callable[[int], None]) -> dict[str, Any]:
    """A cell's record; there are no steps to count in its cloud.

    Raises RuntimeError where llama.cpp fails or does not answer in time.
    """
    bed, paper, link = split.bed, paper_of(cell), link_of(cell, split.setup, costs)
    split.set_link(link.up_bytes_s, link.down_bytes_s)
    prompts = [split.ids(each) for each in split.setup.prompts(cell)]
    quotas = {host.name: bed.host(host.name).cores for host in bed.scenario.hosts}
    began, bytes_before = datetime.now(timezone.utc), bed.bytes("device", "cloud")
    records = []
    with MachineWatch(quotas, lambda: {name: bed.usage(name) for name in quotas}) as watch:
        began_s = time.perf_counter()
        for number, ids in enumerate(prompts):
            records.append(record_of(number, len(ids), split.ask(ids, cell.tokens), began_s))
            sent(number + 1)
    bytes_after = bed.bytes("device", "cloud")
    up_bytes, down_bytes = (after - first for after, first in zip(bytes_after, bytes_before, strict=True))
    return {
        "cell": cell.as_dict(),
        "link": {"up_mb_s": link.up_bytes_s / 1e6, "down_mb_s": link.down_bytes_s / 1e6},
        "scaling": {**ratios(paper, costs, link), "row_bytes": costs.row_bytes},
        "latency": latency_table(records, costs.chunk_s / paper.costs.chunk_s, costs.base_s / paper.costs.base_s),
        "cloud": {"up_bytes": up_bytes, "down_bytes": down_bytes},
        "machine": {"name": machine(), **asdict(watch.report())},
        **upload_bound(cell, records, link, costs),
        "errors": [],
        "began": began.isoformat(timespec="seconds"),
        "commit": commit(),
    }


def record_of(number: int, prompt_tokens: int, answer: Answer, began_s: float) -> Record:
    """A request of a closed loop that began at ``began_s`` of the monotonic clock; all tokens come one by one."""
    sent_s = answer.began_s - began_s
    chunks = [(sent_s + after_s, 1) for after_s in answer.times_s]
    return Record(
        id=number,
        due_s=sent_s,
        sent_s=sent_s,
        first_s=chunks[0][0],
        chunks=chunks,
        prompt_tokens=prompt_tokens,
        tokens=len(answer.tokens),
        finish="length",
    )
