"""What docs/results/hat.json has: conditions with medians and spreads, goals and gains; no raw record. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.hat.breakdown import PARTS
from bench.hat.gains import gains
from bench.hat.goals import judge
from bench.hat.looks import ordered
from bench.hat.records import Record
from bench.hat.spent import PHASES, ROUNDS
from bench.hat.summary import Measured, Spread

NUMBERS = (
    "latency.ttft.mean", "latency.ttft.p50", "latency.ttft.p90", "latency.ttft.p99", "latency.tbt.mean",
    "latency.tbt.p50", "latency.tbt.p90", "latency.tbt.p99", "latency.tokens_s", "latency.decode_tokens_s",
    "latency.goodput", "latency.tau",
    "cloud.step_mean_s", "cloud.step_std_s", "cloud.rows_mean", "cloud.up_bytes", "cloud.down_bytes",
    *(f"breakdown.{phase}.{part}_s" for phase in PHASES.values() for part in PARTS), ROUNDS,
)  # fmt: skip
"""What hat.json has of each condition."""


def summary(records: Sequence[Record], left_out: Sequence[Record] = ()) -> dict[str, Any]:
    """What hat.json has: conditions with medians and spreads, goals and the parts of the gain; no raw record.

    ``left_out``: only their names.
    """
    measured = Measured(records)
    conditions = []
    for place in sorted(measured.places, key=lambda each: (each.experiment, each.setting, each.dataset)):
        spreads = {name: measured.spread(place, name) for name in NUMBERS}
        failed, requests = measured.failed([place])
        conditions.append(
            {
                **asdict(place), "repeats": len(measured.repeats(place)), "requests": requests, "failed": failed,
                "bottlenecks": len(measured.bottlenecks([place])),
                "measured": {name: _rounded(found) for name, found in spreads.items() if found is not None},
            }
        )  # fmt: skip
    return {
        "about": "measured: median, low and high over the repeats; seconds, bytes, requests/s",
        "methods": ordered(each.method for each in measured.places),
        "left_out": [record.cell.name for record in left_out],
        "conditions": conditions,
        "goals": [asdict(goal) for goal in judge(measured)],
        "gains": [
            {"setting": setting, "dataset": dataset, **asdict(each)}
            for setting, dataset in measured.pairs()
            for each in gains(measured, setting, dataset)
        ],
    }


def _rounded(found: Spread) -> list[float]:
    """Five digits that count of median, low and high."""
    return [float(f"{each:.5g}") for each in (found.median, found.low, found.high)]


def as_json(found: Mapping[str, Any]) -> str:
    """JSON with one line for each entry of a list, so that changes can be read."""
    parts = []
    for name, value in found.items():
        if isinstance(value, list):
            lines = ",\n  ".join(json.dumps(each, ensure_ascii=False, sort_keys=True) for each in value)
            parts.append(f"{json.dumps(name)}: [\n  {lines}\n ]")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n " + ",\n ".join(parts) + "\n}\n"
