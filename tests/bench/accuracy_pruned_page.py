"""What leaving heads out loses, as EdgeFormer's page shows it: of records alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from bench.accuracy_pruned import PREFIX, SHARES, SMALL, WAYS, WHOLE
from bench.edge.tables import NOTHING
from bench.page import table
from checkpoints import DEMO

Known = Mapping[tuple[str, str, float], Mapping[str, Any]]
"""Records by model, way and share."""


def shown(found: Mapping[str, Any]) -> str:
    """The demo model's answers, then texts of others, of records by name."""
    known = _known(found)
    parts = []
    for model in (DEMO.name, *SMALL):
        rows = []
        for out in sorted(SHARES):
            of = {way: known[model, way, out] for way in WAYS if (model, way, out) in known}
            cells = [f"{of[way]['above']:+.2f} ± {of[way]['half']:.2f}" if way in of else "–" for way in WAYS]
            if of:
                rows.append([f"{out:.1%}", *(_time(of, scored) for scored in (False, True)), *cells])
        if rows:
            whole = known[model, WHOLE, 0.0]
            unit = "per cent, fresh questions" if whole["unit"] else "perplexity, windows"
            head = ["heads out", "time", "time, scored", *WAYS]
            parts.append(f"{model}, {whole['value']:.2f} {unit} {whole['asked']}:\n\n{table(head, rows)}")
    return "\n\n".join(parts) or NOTHING


def at_equal_time(found: Mapping[str, Any]) -> str:
    """What each way loses in the time that LiScore takes at each share, its scores included: the others straight
    between the shares that were measured, and nothing where there is time for the whole model."""
    known, rows = _known(found), []
    for model in (DEMO.name, *SMALL):
        for out in sorted(SHARES):
            if (model, "liscore", out) not in known:
                continue
            took = known[model, "liscore", out]["time"]
            lost = [_lost(known, model, way, out, took) for way in WAYS]
            rows.append([model, f"{took:.2f}", *("–" if each is None else f"{each:+.2f}" for each in lost)])
    return table(["", "time", *WAYS], rows) if rows else NOTHING


def interpolated(points: Sequence[tuple[float, float]], time: float) -> float | None:
    """Of times and losses the loss at a time; None where it is not between two of them."""
    for (before, one), (after, other) in pairwise(sorted(points)):
        if before <= time <= after:
            return one + (other - one) * ((time - before) / (after - before) if after > before else 0.0)
    return None


def _lost(known: Known, model: str, way: str, out: float, time: float) -> float | None:
    if "liscore" in way:
        record = known.get((model, way, out), {})
        return record.get("above")
    points = [(each["time"], each["above"]) for key, each in known.items() if key[:2] == (model, way)]
    return 0.0 if time >= 1 and points else interpolated([(1.0, 0.0), *points], time)


def _known(found: Mapping[str, Any]) -> Known:
    return {(each["model"], each["way"], each["out"]): each for name, each in found.items() if name.startswith(PREFIX)}


def _time(of: Mapping[str, Any], scored: bool) -> str:
    """The median of the ways that score each prompt, or of those that need not."""
    times = [each["time"] for way, each in of.items() if ("liscore" in way) is scored]
    return f"{statistics.median(times):.2f}" if times else "–"
