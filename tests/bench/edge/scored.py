"""What finding scores again costs and saves, by ζ and τ (EdgeFormer, Fig. 14 and 15), on the demo model's own texts.

Weights are real here, so this says what is lost; it says nothing of the time of a group.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from bench.edge.tables import NOTHING
from bench.page import machine, table
from bench.pruning import Bench
from checkpoints import DEMO

from device_agent.chain.local_pruning import LOOKED_AT
from split_model.pruning.features import LENGTH, Features
from split_model.pruning.importance import ROWS
from split_model.pruning.retrieval import TAU, ZETA, ImportanceStore

FILE = "scored.json"
OUT = 0.25
"""The share of heads that is left out."""

SETTINGS = (
    *((ZETA, -1.0, rows) for rows in (LOOKED_AT, ROWS, 8)),
    *((ZETA, tau, ROWS) for tau in (0.0, 0.2, 0.4, TAU, 0.8)),
    *((zeta, TAU, ROWS) for zeta in (0.2, 0.4, 0.8, 1.0)),
)
"""ζ, τ, below 0 nothing is found again, and how many of the rows that are looked at are sampled; all of them first."""

ABOUT_S = 240.0


class _Counted(ImportanceStore):
    """Counts its answers."""

    asked = hits = 0

    def find(self, heads: Features) -> list[float | None]:
        found = super().find(heads)
        self.asked += len(found)
        self.hits += sum(score is not None for score in found)
        return found


def measure() -> dict[str, Any]:
    """Each setting: one tenant's store over all texts, one after the other."""
    bench, rows = Bench(DEMO, None), []
    base = bench.loss(lambda ids: bench.model.stack)
    read_s = statistics.mean(bench.read_s(text.ids) for text in bench.texts)
    for zeta, tau, most in SETTINGS:
        store, began = _Counted(zeta, tau), time.perf_counter()
        orders = [bench.scored(text.ids, store, most=most) for text in bench.texts]
        took = time.perf_counter() - began
        sets = iter([bench.sets(order, OUT) for order in orders])
        lost = bench.loss(lambda ids, sets=sets: bench.without.with_heads(next(sets))) - base  # type: ignore[misc]
        found = {"zeta": zeta, "tau": tau, "rows": most, "hits": store.hits / store.asked, "lost": lost}
        held_bytes = 4 * len(store) * (2 * bench.spec.head_dim + LENGTH + 1)
        rows.append(found | {"s": took / len(orders), "clusters": store.clusters, "bytes": held_bytes})
        print(f"scores: {rows[-1]}", flush=True)
    return {"machine": machine(), "read_s": read_s, "settings": rows}


def write(folder: Path, quick: bool) -> None:
    """Measure, unless a folder of records has it; quick: nothing."""
    file = folder / FILE
    if not quick and not file.is_file():
        torch.set_num_threads(1)
        file.write_text(json.dumps(measure()), encoding="utf-8")


def shown(found: Mapping[str, Any]) -> str:
    """By setting."""
    rows = []
    for each in found.get("settings", []):
        tau = f"{each['tau']:g}" if each["tau"] >= 0 else "never"
        cost = f"{each['s'] * 1e3:.1f} ({each['s'] / found['read_s'] - 1:+.0%})"
        words = [f"{each['zeta']:g}", tau, f"{each['rows']} of {LOOKED_AT}", f"{each['hits']:.0%}", cost]
        rows.append([*words, f"{each['lost']:.3f}", f"{each['clusters']}", f"{each['bytes'] / 1e3:.0f}"])
    head = ["ζ", "τ", "rows scored", "found again", "ms a prompt (beside reading those rows)"]
    head += ["nats a token lost", "clusters", "kB kept"]
    return table(head, rows) if rows else NOTHING
