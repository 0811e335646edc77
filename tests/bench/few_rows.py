"""Steps of few rows of a whole model, beside the same without what makes them fast.

    make bench-few-rows [ARGS="--threads 1 --dtype float32"]

The model is a random Llama. In bfloat16 its few rows are beside oneDNN's products alone; in float32 packed matrices are
beside plain ones, which PyTorch multiplies as it does by itself. Both take turns in one process: embedding, layers
behind 256 positions, head. Memory in large pages is what processes that hold layers have.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from bench.page import machine, table
from bench.random_llama import Shape, write_checkpoint

from split_model import few_rows
from split_model.matrix import can_pack
from split_model.reference import Reference
from split_model.stack import Span

ROWS = {torch.bfloat16: (1, 2, 4, 8, 16), torch.float32: (1, 2, 4, 8, 16, 64, 256)}
THEIRS = {torch.bfloat16: "oneDNN's products", torch.float32: "plain products"}
BEFORE = 256
STEPS, ROUNDS = 8, 4


def main() -> None:
    """Measure in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    options = parser.parse_args()
    threads, dtype = options.threads, getattr(torch, options.dtype)
    torch.set_num_threads(threads)
    if not (can_pack(dtype) and (dtype == torch.float32 or few_rows.can_run())):
        raise SystemExit("this CPU or system cannot run these products: both would be the same")
    plain: AbstractContextManager[object] = patch("split_model.matrix.most_rows", lambda: 0)
    with TemporaryDirectory() as name:
        folder = write_checkpoint(Shape(), Path(name))
        other = model = Reference.load(folder, dtype)
        if dtype == torch.float32:
            plain = nullcontext()
            with patch("split_model.matrix.packs", lambda *of: False):
                other = Reference.load(folder, dtype)
    found: dict[int, list[tuple[float, float]]] = {rows: [] for rows in ROWS[dtype]}
    for _ in range(ROUNDS):
        for rows, pairs in found.items():
            with plain:
                theirs = step_s(other, rows)
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
    print(table(f"rows | {THEIRS[dtype]} | ours | ratio", lines))


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
