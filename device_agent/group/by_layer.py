"""A layer that one member computes alone: a pipeline over layers, and steps of few rows where many are shared."""

from __future__ import annotations

import torch

from device_agent.group.held import HeldLayer, PieceCaches
from device_agent.group.step_rows import StepRows


def run_alone(held: HeldLayer, caches: PieceCaches, on: StepRows, hidden: torch.Tensor) -> torch.Tensor:
    """hidden ``[rows, hidden]`` to the layer's output; the keys and values of all heads are stored, where any
    are kept."""
    block, [of_all] = held.block, caches
    q, k, v = block.qkv(block.input_norm(hidden), *on.turned(range(on.rows)))
    hidden = block.after_attention(hidden, block.attention_output(on.attend(block, of_all, q, k, v)))
    return block.after_mlp(hidden, block.mlp(block.mlp_norm(hidden)))
