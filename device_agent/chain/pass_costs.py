"""What prompts of this device take, with all heads and with none: measured on its own layers."""

from __future__ import annotations

from collections.abc import Callable

import torch

from device_agent.planning.pruning import PassCosts
from split_model.pruning.watched import Layers
from split_model.stack import Span

ROWS = (16, 64, 256, 1024)
"""Prompts whose time is measured, as far as the model reads such; longer ones are taken to go on straight."""

REPEATS = 3

ENOUGH_S = 2.0
"""A length is not measured again once so much was spent on it, and no longer one behind one that took so long."""

Clock = Callable[[], float]


def measured_costs(whole: Layers, bare: Layers, longest: int, clock: Clock) -> PassCosts:
    """Seconds of a prompt's pass through all layers, the shortest of a few. On the compute thread.

    bare: the layers without any head. longest: positions that the model reads, 2 or more.
    """
    rows: list[int] = []
    taken: list[tuple[float, float]] = []
    for count in lengths(longest):
        if len(rows) > 1 and sum(taken[-1]) > ENOUGH_S:
            break
        rows.append(count)
        taken.append((_seconds(whole, count, clock), _seconds(bare, count, clock)))
    return PassCosts(tuple(rows), tuple(each[0] for each in taken), tuple(each[1] for each in taken))


def lengths(longest: int) -> list[int]:
    """Of the prompts that are measured, ascending, two or more."""
    return sorted({1, *(min(each, longest) for each in ROWS)})


@torch.inference_mode()
def _seconds(layers: Layers, rows: int, clock: Clock) -> float:
    best, spent, ids = float("inf"), 0.0, torch.zeros(rows, dtype=torch.int64)
    for _ in range(REPEATS):
        began = clock()
        hidden = layers.embedding.forward(ids)
        for stack in layers.stacks:
            hidden = stack.forward(hidden, [Span(stack.new_cache(rows), rows)])
        taken = clock() - began
        best, spent = min(best, taken), spent + taken
        if spent > ENOUGH_S:
            break
    return best
