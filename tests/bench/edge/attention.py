"""The attention alone in both orders, for one device's share of the rows (Voltage, Fig. 6), on one core."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from bench.edge.measured import least_s, orders
from bench.edge.shapes import SHAPES
from bench.edge.weights import RandomCheckpoint
from bench.page import machine, table

from split_model.blocks import Block

SIZES = ((16, 64), (8, 128), (4, 256))
"""Heads, and the size of each."""

ROWS = (100, 200, 300)
PARTS = (1, 2, 4, 6, 8, 10)
FILE = "attention.json"


@torch.inference_mode()
def measure() -> list[dict[str, Any]]:
    """All sizes, in the shape of BERT-large."""
    found = []
    for heads, size in SIZES:
        config = {**SHAPES["bert-large"].config, "num_attention_heads": heads}
        spec = replace(SHAPES["bert-large"], config=config).spec(1)
        block = Block(RandomCheckpoint(spec), 0, torch.float32, apart=True)
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
    return table(["heads, size", "rows", *(f"{parts} parts" for parts in PARTS[1:])], rows)
