"""Where the time of a cell's requests went: on the devices, on the links, waiting in the cloud, in its steps. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final

from bench.hat.latency import Record, TimeSpent

PARTS: Final = ("device", "link", "queue", "step")


def breakdown(records: Sequence[Record]) -> dict[str, Any]:
    """The member ``breakdown`` of a cell's record, in seconds; nothing where no answered request had timings.

    ``prompt`` has means over requests. ``decode`` has means over requests of what one generated token behind the first
    took, and of its share of a round; it is left out where none had such a token.
    """
    timed = [(each.timings, each.tokens - 1) for each in records if each.complete and each.timings is not None]
    if not timed:
        return {}
    found = {"prompt": _means([_seconds(timings.prompt) for timings, _ in timed])}
    decoded = [
        {name: value / tokens for name, value in {**_seconds(each.decode), "rounds": each.decode.rounds}.items()}
        for each, tokens in timed
        if tokens > 0
    ]
    if decoded:
        found["decode"] = _means(decoded)
    return {"breakdown": found}


def _seconds(spent: TimeSpent) -> dict[str, float]:
    return {f"{part}_s": getattr(spent, f"{part}_ms") / 1e3 for part in PARTS}


def _means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}
