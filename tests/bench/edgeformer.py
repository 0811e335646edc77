"""What is measured for EdgeFormer's evaluation, and what its links stand for.

    make bench-edgeformer             # what has no record yet, and then the page
    make bench-edgeformer ARGS=--quick

Latency is of random weights: cells. What leaving heads out loses is of real ones: `make bench-accuracy ARGS=--pruned`,
whose records this page shows beside them, and `bench/edge/scored.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product

from bench.edge import case, handing, lending_picture, limited, scored, varied
from bench.edge.cells import ENVIRONMENTS, REPEATS, Cell
from bench.edge.edgeformer_figures import (
    COMPARED,
    CORNERS,
    FAST,
    FIGURES,
    FIRST,
    JUDGED,
    LENDING,
    LENT,
    MBIT,
    MIXED,
    OURS,
    OUTS,
    PAPER,
    PRUNED,
    SHAPES,
    SLOW,
    SWEPT,
    TASKED,
    TASKS,
    USUAL_OUT,
    accelerated,
    of,
)
from bench.edge.run import Apart, run

from device_agent.planning.task import Task

APART = (
    *(Apart(name, case.seconds, partial(varied.write, name), short=False) for name, case in varied.CASES.items()),
    Apart("case", case.ABOUT_S, case.write, short=False),
    Apart("handing", handing.ABOUT_S, handing.write, short=False),
    Apart("limited", limited.ABOUT_S, limited.write, short=False),
    Apart("scored", scored.ABOUT_S, scored.write, short=False),
)


def port_mb_s(shape: str, task: Task, local_s: float) -> float:
    """MB/s of every port that stand for 500 Mb/s: those at which, at 400, two all-reduces a layer among three devices
    take what Galaxy takes in the paper beyond a third of accelerate, which is one device."""
    alone, _, galaxy, _ = PAPER[shape]
    reduces_s = (galaxy / alone - 1 / 3) * local_s
    moved = 2 * 2 * (2 / 3) * task.work.rows * task.shape.row_bytes * task.shape.layers
    return moved / reduces_s / 1e6 * 500.0 / MBIT


def cells(quick: bool) -> Iterator[Cell]:
    """All, the most wanted first, each behind what it stands on."""
    for cell in _planned(quick):
        if cell.mbit:
            yield cell.reference()
        yield cell.local()
        yield cell.calibration(len(ENVIRONMENTS[cell.environment].cores))
        yield cell


def _planned(quick: bool) -> Iterator[Cell]:
    runs = 1 if quick else 3
    for shape in SHAPES[: 1 if quick else None]:
        yield accelerated(shape, runs=runs)
        for method in COMPARED:
            yield of(shape, method, runs=runs)
        yield of(shape, PRUNED, out=USUAL_OUT, runs=runs)
    if not quick:
        for repeat, shape in product(range(1, REPEATS), SHAPES):
            yield replace(accelerated(shape, runs=runs), repeat=repeat)
            for method in JUDGED:
                yield replace(of(shape, method, runs=runs), repeat=repeat)
        yield from _further()


def _further() -> Iterator[Cell]:
    for shape in SWEPT:
        for method in MIXED:
            yield of(shape, method, "20-13-7")
        for method in TASKED:
            for rows in TASKS.values():
                yield of(shape, method, rows=rows)
    for count in (2, 3, 4, 5, 6):
        for method in (OURS, "lending"):
            yield of("half-opt-1.3b", method, f"equal-{count}")
    for rows, mbit in CORNERS:
        for method in LENT:
            yield of(FIRST, method, mbit=mbit, rows=rows, devices=2)
    for shape in SWEPT:
        for out in OUTS:
            yield replace(of(shape, OURS).local(), out=out, runs=1)
            yield of(shape, PRUNED, out=out)
        yield of(shape, PRUNED)
        yield of(shape, "pipeline", out=USUAL_OUT)
        for mbit in (SLOW, FAST):
            for method in (OURS, "joint", "galaxy", *LENDING):
                yield of(shape, method, mbit=mbit)
    yield of(FIRST, OURS, layers=36)
    for method in (OURS, "lending", "pipeline"):
        yield of(FIRST, method, new=16)


if __name__ == "__main__":
    run("edgeformer", str(__doc__), cells, port_mb_s, FIGURES, APART, 16_000, lending_picture.draw)
