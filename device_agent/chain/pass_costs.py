"""What prompts of this device take, with all heads and with none: measured on its own layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from device_agent.cloud.chunks import DEFAULT_CHUNK
from device_agent.planning.pruning import PassCosts
from split_model.pruning.watched import Layers
from split_model.stack import Span

ROWS = (16, 64, 256, 1024)
"""Prompts whose time is measured, as far as the model reads such; longer ones are taken to go on straight."""

REPEATS = 3

ENOUGH_S = 2.0
"""A length is not measured again once so much was spent on it, and no longer one behind one that took so long."""

LEAST_ROWS = 64
"""So many rows are measured however long they take: few rows take what reading the weights does, and would make long
prompts seem to take no longer."""

Clock = Callable[[], float]


def measured_costs(whole: Layers, bare: Layers, longest: int, clock: Clock, chunk: int = DEFAULT_CHUNK) -> PassCosts:
    """Seconds of a prompt's pass through all layers, the shortest of a few. On the compute thread.

    bare: the layers without any head. longest: positions that the model reads, 2 or more. chunk: rows that are run at
    once of a prompt, as they will be.
    """
    rows: list[int] = []
    taken: list[tuple[float, float]] = []
    for count in lengths(longest):
        if is_enough(rows, taken):
            break
        rows.append(count)
        taken.append((_seconds(whole, count, clock, chunk), _seconds(bare, count, clock, chunk)))
    return PassCosts(tuple(rows), tuple(each[0] for each in taken), tuple(each[1] for each in taken))


def lengths(longest: int) -> list[int]:
    """Of the prompts that are measured, ascending, two or more."""
    return sorted({1, *(min(each, longest) for each in ROWS)})


def is_enough(rows: Sequence[int], taken: Sequence[tuple[float, float]]) -> bool:
    """Whether no longer prompt is measured behind those of so many rows, which took so long with all heads and with
    none."""
    return bool(rows) and rows[-1] >= LEAST_ROWS and sum(taken[-1]) > ENOUGH_S


@torch.inference_mode()
def _seconds(layers: Layers, rows: int, clock: Clock, chunk: int) -> float:
    best, spent, ids = float("inf"), 0.0, torch.zeros(rows, dtype=torch.int64)
    for _ in range(REPEATS):
        began = clock()
        caches = [stack.new_cache(rows) for stack in layers.stacks]
        for begin in range(0, rows, chunk):
            part = ids[begin : begin + chunk]
            hidden = layers.embedding.forward(part)
            for stack, cache in zip(layers.stacks, caches, strict=True):
                hidden = stack.forward(hidden, [Span(cache, len(part))])
        taken = clock() - began
        best, spent = min(best, taken), spent + taken
        if spent > ENOUGH_S:
            break
    return best
