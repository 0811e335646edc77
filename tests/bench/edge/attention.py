"""The attention alone in both orders, for one device's share of the rows (Voltage, Fig. 6), on one core."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from bench.edge import tables
from bench.edge.shapes import SHAPES
from bench.edge.weights import RandomCheckpoint
from bench.page import machine

from device_agent.group.forms.reordered import attend_reordered
from device_agent.group.rows.step_rows import GroupStretch, StepRows
from split_model.blocks import Block

SIZES = ((16, 64), (8, 128), (4, 256))
"""Heads, and the size of each."""

ROWS = (100, 200, 300)
PARTS = (1, 2, 4, 6, 8, 10)
TRIES = 5
FILE = "attention.json"


def orders(block: Block, rows: int, seen: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """A layer's attention from hidden states to heads, of the first so many of the rows that are seen: by Eq. 3, for
    which all keys and values are projected, and by Eq. 8."""
    on = StepRows(cast(Any, None), (0,), 0, GroupStretch.whole_texts([seen]), None, all_see_all=True)
    hidden = block.attention_output(torch.zeros(1, block.heads * block.head_dim)).shape[1]
    shared, own, none = torch.randn(seen, hidden), range(min(rows, seen)), (None, None)

    def projected() -> object:
        q = block.qkv.query(shared[: own.stop], *none)
        return on.look(block, on.store((), *block.qkv.key_value(shared, *none)), q, own)

    def reordered() -> object:
        queries = [block.qkv.query(shared[: own.stop], *none)]
        return attend_reordered([block], on, queries, own, shared, [range(seen)])

    return projected, reordered


def least_s(work: Callable[[], object]) -> float:
    """The least of some tries: others on this machine only make it longer."""
    work()
    found = []
    for _ in range(TRIES):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


@torch.inference_mode()
def measure() -> list[dict[str, Any]]:
    """All sizes, in the shape of BERT-large."""
    found = []
    for heads, size in SIZES:
        config = {**SHAPES["bert-large"].config, "num_attention_heads": heads}
        spec = replace(SHAPES["bert-large"], config=config).spec(1)
        block = Block(RandomCheckpoint(spec), 0, torch.float32, apart=True, plain=True)
        for rows in ROWS:
            for parts in PARTS:
                projected, reordered = map(least_s, orders(block, -(-rows // parts), rows))
                sizes = {"heads": heads, "size": size, "rows": rows, "parts": parts}
                found.append({**sizes, "projected_s": projected, "reordered_s": reordered})
    return found


def write(folder: Path, quick: bool) -> None:
    """Measure what a folder of records does not have yet."""
    file = folder / FILE
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(1)
        file.write_text(json.dumps({"machine": machine(), "attention": measure()}), encoding="utf-8")


def shown(found: Sequence[Mapping[str, Any]]) -> str:
    """How many times as fast as the whole output: by Eq. 3 always, and in the order that was faster."""
    whole = {(each["heads"], each["rows"]): each["projected_s"] for each in found if each["parts"] == 1}
    rows = []
    for heads, size in SIZES:
        for count in ROWS:
            cells = []
            for parts in PARTS[1:]:
                sizes = heads, count, parts
                each = next((e for e in found if (e["heads"], e["rows"], e["parts"]) == sizes), None)
                if each is None:
                    cells.append("–")
                    continue
                naive, chosen = each["projected_s"], min(each["projected_s"], each["reordered_s"])
                faster = whole[heads, count]
                cells.append(f"{faster / naive:.1f} → {faster / chosen:.1f} ({naive / chosen:.1f}×)")
            rows.append([f"{heads}, {size}", f"{count}", *cells])
    return tables.shown(["heads, size", "rows", *(f"{parts} parts" for parts in PARTS[1:])], rows, 2)
