"""Steps of few rows of a whole model, beside the same by oneDNN's products alone.

    make bench-few-rows [ARGS="--threads 1"]

The model is a random Llama in bfloat16. Both take turns in one process: embedding, layers behind 256 positions, head.
Memory in large pages is what processes that hold layers have.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from bench.page import machine, table
from bench.random_llama import Shape, write_checkpoint

from split_model import few_rows
from split_model.reference import Reference
from split_model.stack import Span

ROWS = (1, 2, 4, 8, 16)
BEFORE = 256
STEPS, ROUNDS = 8, 4


def main() -> None:
    """Measure in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    if not few_rows.can_run():
        raise SystemExit("this CPU or system cannot run these products: both would be oneDNN's")
    with TemporaryDirectory() as name:
        model = Reference.load(write_checkpoint(Shape(), Path(name)), torch.bfloat16)
    found: dict[int, list[tuple[float, float]]] = {rows: [] for rows in ROWS}
    for _ in range(ROUNDS):
        for rows, pairs in found.items():
            with patch("split_model.matrix.most_rows", lambda: 0):
                theirs = step_s(model, rows)
            pairs.append((theirs, step_s(model, rows)))
    print(f"Measured on {machine()}, {threads} threads; medians of {ROUNDS} rounds (lowest to highest), ms a step.\n")
    lines = []
    for rows, pairs in found.items():
        ratios = [theirs / own for theirs, own in pairs]
        lines.append(
            [
                str(rows),
                *(_shown([1e3 * each for each in side]) for side in zip(*pairs, strict=True)),
                _shown(ratios, 2),
            ]
        )
    print(table("rows | oneDNN's products | ours | ratio", lines))


def step_s(model: Reference, rows: int) -> float:
    """Median seconds of a step of so many rows of one session, head included."""
    cache = model.stack.new_cache(BEFORE + rows)
    ids = list(range(3, 3 + BEFORE))
    model.stack.forward(model.embedding.forward(ids), [Span(cache, BEFORE)])
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        model.head.forward(model.stack.forward(model.embedding.forward(ids[:rows]), [Span(cache, rows)]))
        times.append(time.perf_counter() - began)
        cache.truncate(BEFORE)
    return statistics.median(times[2:])


def _shown(numbers: list[float], places: int = 1) -> str:
    return f"{statistics.median(numbers):.{places}f} ({min(numbers):.{places}f} to {max(numbers):.{places}f})"


if __name__ == "__main__":
    main()
