"""A layer that one member computes alone: a pipeline over layers, and steps of few rows where many are shared."""

from __future__ import annotations

import torch

from device_agent.group.forms.crossing import crossed
from device_agent.group.holding.held import HeldLayer, PieceCaches
from device_agent.group.rows.step_rows import StepRows


def run_alone(held: HeldLayer, caches: PieceCaches, on: StepRows, hidden: torch.Tensor) -> torch.Tensor:
    """hidden ``[rows, hidden]`` to the layer's output; the keys and values of all heads are stored, where any
    are kept."""
    return run_mlp(held, run_attention(held, caches, on, hidden))


def run_attention(held: HeldLayer, caches: PieceCaches, on: StepRows, hidden: torch.Tensor) -> torch.Tensor:
    """The first half of the layer: hidden ``[rows, hidden]`` to a new tensor, the rows behind the attention."""
    block, [of_all] = held.block, caches
    with block.using("attention"):
        q, k, v = block.qkv(block.input_norm(hidden), *on.turned(range(on.rows)))
        hidden = block.after_attention(hidden, block.attention_output(on.attend(block, of_all, q, k, v, held.bias)))
        if block.cross is not None:
            hidden = hidden.add_(crossed(held, on, held.own, hidden, range(on.rows)))
    return hidden


def run_mlp(held: HeldLayer, hidden: torch.Tensor) -> torch.Tensor:
    """The other half: what ``run_attention`` gave, which may change, to the layer's output."""
    block = held.block
    with block.using("mlp"):
        return block.after_mlp(hidden, block.mlp(block.mlp_norm(hidden)))
