"""Attention in the order of Voltage's Eq. 8, from hidden states to the heads' results, to know where it pays."""

from __future__ import annotations

import math
from typing import Final

import torch

from device_agent.profiling.layer_runs import LAYER
from device_agent.profiling.timing import Run
from split_model.blocks import Block
from split_model.checkpoint import Checkpoint
from split_model.device import put
from split_model.spec import ModelSpec

MAX_BYTES: Final = 256 << 20
"""Of what lies between two of its products: where it is more, no more rows are measured."""

FLOAT_BYTES: Final = 4
"""Scores are float32."""


def has_order(spec: ModelSpec) -> bool:
    """Whether the order is right for a model at all: it makes no keys that could be turned or normed, or whose scores
    anything is added to."""
    return spec.positions == "learned" and not spec.qk_norm


class ReorderedRuns:
    """Of one layer, whole."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        """Raises BadCheckpoint."""
        self._spec, self._dtype, self._device = checkpoint.spec, dtype, device
        self._block = Block(checkpoint, LAYER, dtype, columns=range(0), device=device, apart=True, plain=True)

    def fits(self, rows: int, positions: int) -> bool:
        """Whether what lies between its products is little enough to be measured."""
        widest = max(self._spec.hidden_size, positions)
        return self._spec.num_heads * rows * widest * FLOAT_BYTES <= MAX_BYTES

    def run(self, rows: int, positions: int) -> Run:
        """Of rows that see all of so many positions, which have all come."""
        block, spec = self._block, self._spec
        own = put(torch.randn((rows, spec.hidden_size), dtype=self._dtype), self._device)
        seen = put(torch.randn((positions, spec.hidden_size), dtype=self._dtype), self._device)

        def run() -> torch.Tensor:
            sought = block.qkv.sought(block.qkv.query(own) * (1 / math.sqrt(spec.head_dim)))
            scores = (sought @ seen.t()).float()
            weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
            total, mixed = weights.sum(-1, keepdim=True), (weights.to(seen.dtype) @ seen).float()
            return block.qkv.valued((mixed / total).to(sought.dtype))

        return run
