"""One question to the demo model, as in the paper's Table 4: what each head is worth, and which device computes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from bench.edge.foreseen import OURS, SPEEDS
from bench.edge.tables import NOTHING
from bench.page import machine, table
from bench.pruning import Bench
from checkpoints import DEMO

from device_agent.planning.group_levels import levels_in_group
from device_agent.planning.head_allocation import soonest
from device_agent.planning.head_times import head_times
from device_agent.planning.lending_map import NOMINAL_FLOPS_S, nominal_profile
from device_agent.planning.pruning import LEVELS
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Task, Work
from split_model.pruning.liscore import normalised
from split_model.pruning.orders import by_scores
from split_model.pruning.retrieval import ImportanceStore

FILE = "case.json"
ABOUT_S = 10.0
LEVEL = LEVELS // 4
"""A quarter of all heads is left out."""


def measure() -> dict[str, Any]:
    """Of devices at their nominal speed, all of which have the rows."""
    bench = Bench(DEMO, None)
    spec, text = bench.spec, bench.texts[0]
    scores = bench.scores(text.ids[: text.start], ImportanceStore(tau=-1.0))
    shape = ModelShape.of(spec, "float32")
    profile = nominal_profile(shape, SPEEDS, OURS * NOMINAL_FLOPS_S)
    names = tuple(device.name for device in profile.devices)
    times = head_times(Task(shape, profile, names, names[0], Work(text.start)), None)
    levels = levels_in_group(by_scores(scores), [times] * spec.num_layers, 0, spec.num_heads, spec.heads_per_group)
    layers = []
    for worth, kept in zip(map(normalised, scores), levels[LEVEL].sets, strict=True):
        counts = soonest(times, [1.0] * spec.num_kv_heads, len(kept.groups)).counts
        at = [device for device, count in enumerate(counts, 1) for _ in range(count)]
        where = dict(zip(kept.groups, at, strict=True))
        layers.append([[each, where.get(head // kept.group, 0)] for head, each in enumerate(worth)])
    asked = " ".join(bench.tokenizer.decode(text.ids[: text.start]).split())
    return {"machine": machine(), "asked": asked, "layers": layers}


def write(folder: Path, quick: bool) -> None:
    """Measure, unless a folder of records has it; quick: nothing."""
    file = folder / FILE
    if not quick and not file.is_file():
        torch.set_num_threads(1)
        file.write_text(json.dumps(measure()), encoding="utf-8")


def shown(found: Mapping[str, Any]) -> str:
    """By layer and head."""
    layers = found.get("layers", [])
    if not layers:
        return NOTHING
    head = ["layer", *(f"head {number}" for number in range(1, 1 + len(layers[0])))]
    cells = [[f"{worth:.2f}, {f'device {at}' if at else 'left out'}" for worth, at in each] for each in layers]
    rows = [[f"{number}", *each] for number, each in enumerate(cells)]
    return f"*{found['asked']}*\n\n{table(head, rows)}"
