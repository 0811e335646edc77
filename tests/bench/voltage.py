"""What is measured for Voltage's evaluation, and what its links stand for.

make bench-voltage             # what has no record yet, and then the page
make bench-voltage ARGS=--quick
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from itertools import product
from typing import Any

from bench.edge import attention
from bench.edge.cells import REPEATS, STANDARD_RUNS, Cell
from bench.edge.measured import with_ports
from bench.edge.methods import METHODS
from bench.edge.records import Records
from bench.edge.run import Apart, run
from bench.edge.shapes import longer
from bench.edge.tables import depth, generation, predictions, products, runs, shown, where
from bench.page import table

from device_agent.planning.task import Task

SHAPES = ("bert-large", "vit-base", "gpt2")

PAPER = {"bert-large": -0.279, "vit-base": -0.291, "gpt2": -0.321}
"""At six devices and 500 Mb/s, against one device."""

GATHER = {"bert-large": 0.40, "grouped": 0.40}
"""Seconds of all layers' all-gathers for a second of one device, at six devices and 500 Mb/s: derived from tensor
parallelism's 4.2 at 200 Mb/s. Grouped heads, which the paper has not, get the same. For the other shapes links make
Voltage without overlap as fast as it is in the paper."""

COMPARED = ("tensor", "voltage-paper", "voltage")
GOAL = -0.45
BANDWIDTHS = (200.0, 400.0, 600.0, 800.0, 1000.0)


def port_mb_s(shape: str, task: Task, local_s: float) -> float:
    """MB/s of every port that stand for 500 Mb/s."""
    if shape in GATHER:
        members, rows = len(task.members), task.work.rows
        moved = (members - 1) / members * rows * task.shape.row_bytes * task.shape.layers
        return moved / (GATHER[shape] * local_s) / 1e6
    # The profile's own speed does not matter, only how Voltage compares with one device.
    one = task.prefill(METHODS["local"][1](task)).seconds
    slow, fast = 1e-3, 1e5
    while fast > slow * 1.001:
        mb_s = math.sqrt(slow * fast)
        linked = Task(task.shape, with_ports(task.profile, mb_s), task.members, task.portal, task.work)
        published = linked.prefill(METHODS["voltage-paper"][1](linked)).seconds
        slow, fast = (slow, mb_s) if published < (1 + PAPER[shape]) * one else (mb_s, fast)
    return fast * one / local_s


def of(shape: str, method: str, devices: int = 6, mbit: float = 500.0, **more: Any) -> Cell:
    """So many of equal devices."""
    return Cell(f"equal-{devices}", shape, method, devices, mbit, **more)


def cells(quick: bool) -> Iterator[Cell]:
    """All, the most wanted first."""
    runs = 1 if quick else STANDARD_RUNS
    shapes = ("bert-large", "gpt2") if quick else SHAPES
    for some, counts in ((shapes, (6, 2, 4)), *([] if quick else [(SHAPES, (3, 5))])):
        for shape in some:
            for devices in counts:
                yield of(shape, "voltage", devices).local()
                yield of(shape, "voltage", devices).calibration()
                for method in COMPARED:
                    yield of(shape, method, devices, runs=runs)
    if quick:
        return
    for repeat, shape in product(range(1, REPEATS), SHAPES):
        yield of(shape, "voltage", repeat=repeat).local()
        for method in COMPARED:
            yield of(shape, method, runs=runs, repeat=repeat)
    for shape in SHAPES:
        for mbit in BANDWIDTHS:
            for method in COMPARED:
                yield of(shape, method, 6, mbit)
    yield of("bert-large", "voltage", layers=24)
    for method in COMPARED:
        yield of("grouped", method)
    for method in COMPARED:
        yield of("gpt2", method, new=16)
    for method in COMPARED:
        yield of("gpt2", method, dtype="bfloat16")


def against_one(records: Records, cell: Cell) -> str:
    """How much more, or less, a cell takes than one device."""
    ratio = records.ratio(cell, cell.local())
    if ratio is None:
        return records.marked(cell, "–")
    rounds = [f"{each * 100 - 100:+.1f}" for each in records.ratios(cell, cell.local())]
    spread = f" [{rounds[0]} to {rounds[-1]}]" if len(rounds) > 1 else ""
    return records.marked(cell, f"{ratio * 100 - 100:+.1f} %{spread}{records.slower(cell)}")


def headline(records: Records) -> str:
    """Six devices, 500 Mb/s."""
    rows = []
    for shape in SHAPES:
        cells = [of(shape, method, 6) for method in COMPARED]
        local, ours = records.seconds(cells[0].local()), cells[-1]
        one = "–" if local is None else f"{local:.1f}"
        share = records.value(ours, "predicted_full_s") / records.one_s(ours, local or 1.0)
        predicted = records.marked(ours, f"{share * 100 - 100:+.1f} %")
        paper = f"{PAPER[shape] * 100:+.1f} %"
        against = [against_one(records, cell) for cell in cells]
        rows.append(
            [longer(shape, 0).title, one, paper, against[1], against[0], against[2], predicted, verdict(records, ours)]
        )
    head = ["", "one device, s", "Voltage, paper", "Voltage as published, here", "tensor parallelism"]
    return table([*head, "**Trilby**", "predicted", "goal: -45 %"], rows)


def verdict(records: Records, cell: Cell) -> str:
    """Of the goal."""
    ratio = records.ratio(cell, cell.local())
    if ratio is None:
        return "not measured"
    if doubts := records.doubts(cell):
        return f"in doubt: {', '.join(doubts)}"
    if ratio <= 1 + GOAL:
        return "**met**"
    return f"**missed**, by {(ratio - 1 - GOAL) * 100:.1f} points: {parts(records, cell)}"


def parts(records: Records, cell: Cell) -> str:
    """What a group's time goes into, as shares of one device's."""
    record = records.found[cell.name]
    one_s = records.one_s(cell, records.seconds(cell.local()) or 1.0)
    named = {"computing": "compute_s", "waiting": "wait_s"}
    said = [f"{word} {record[key] * cell.model.layers / one_s:.0%}" for word, key in named.items()]
    return f"{', '.join(said)}, ends {record['ends_s'] / one_s:.0%} of one device's time"


def devices(records: Records) -> str:
    """More and more devices at 500 Mb/s, against one; slower ones say so by their sign."""
    rows = []
    for shape in SHAPES:
        for method in COMPARED:
            cells = [of(shape, method, count) for count in range(2, 7)]
            rows.append([longer(shape, 0).title, METHODS[method][0], *(against_one(records, cell) for cell in cells)])
    return shown(["", "method", *(f"{count} devices" for count in range(2, 7))], rows, 2)


def bandwidths(records: Records) -> str:
    """Six devices, against one."""
    rows, all_of_them = [], sorted((*BANDWIDTHS, 500.0))
    for shape in SHAPES:
        for method in COMPARED:
            cells = [of(shape, method, 6, mbit) for mbit in all_of_them]
            rows.append([longer(shape, 0).title, METHODS[method][0], *(against_one(records, cell) for cell in cells)])
    return shown(["", "method", *(f"{mbit:g} Mb/s" for mbit in all_of_them)], rows, 2)


def moved(records: Records) -> str:
    """Bytes that a device sends for a layer, beside the formulas."""
    rows = []
    for shape in (*SHAPES, "grouped"):
        for count in range(2, 7):
            model = longer(shape, 0)
            whole = model.rows * model.model().row_bytes * (count - 1) / count
            found = [records.get(of(shape, method, count)) for method in ("voltage-paper", "tensor", "voltage")]
            if not any(found):
                continue
            sent = [list(each["bytes_a_layer"].values()) if each else [] for each in found]
            means = [f"{statistics.fmean(each):.0f}" if each else "–" for each in sent]
            rows.append([model.title, f"{count}", f"{whole:.0f}", means[0], f"{4 * whole:.0f}", means[1], means[2]])
    head = ["", "devices", "(K−1)NF/K · 4 bytes", "Voltage as published sends", "4 (K−1)NF/K · 4 bytes"]
    return shown([*head, "tensor parallelism sends", "Trilby sends, mean"], rows, 2)


def grouped(records: Records) -> str:
    """Where 8 query heads share a key head: keys and values instead of hidden states."""
    rows = []
    for method in COMPARED:
        cell = of("grouped", method, 6)
        of_each = (records.get(cell) or {}).get("bytes_a_layer", {}).values()
        sent = records.marked(cell, f"{statistics.fmean(of_each or [math.nan]):.0f}")
        plan = records.marked(cell, str((records.get(cell) or {}).get("plan")))
        rows.append([METHODS[method][0], plan, sent, against_one(records, cell)])
    return shown(["method", "layers", "bytes a device and layer", "against one device"], rows, 1)


def bf16(records: Records) -> str:
    """The same links, half the bytes and other products."""
    rows = []
    for method in COMPARED:
        cell = of("gpt2", method, 6, dtype="bfloat16")
        rows.append([METHODS[method][0], against_one(records, of("gpt2", method, 6)), against_one(records, cell)])
    return shown(["GPT-2", "fp32, against one device in fp32", "bf16, against one device in bf16"], rows, 1)


def breakdown(records: Records) -> str:
    """Where a layer's time goes at six devices and 500 Mb/s."""
    return where(records, [of(shape, method, 6) for shape in SHAPES for method in COMPARED])


FIGURES = {
    "attention": lambda records: attention.shown(records.found.get("attention", {}).get("attention", [])),
    "headline": headline,
    "devices": devices,
    "bandwidths": bandwidths,
    "bytes": moved,
    "grouped": grouped,
    "bf16": bf16,
    "where": breakdown,
    "products": lambda records: products(records, [of(shape, "voltage").local() for shape in SHAPES]),
    "depth": depth,
    "generation": generation,
    "predictions": predictions,
    "runs": runs,
}

APART = (Apart("attention", 30.0, attention.write, short=True),)

if __name__ == "__main__":
    run("voltage", str(__doc__), cells, port_mb_s, FIGURES, APART, 16_000)
