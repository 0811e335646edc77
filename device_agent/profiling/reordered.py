"""Attention in the order of Voltage's Eq. 8, from hidden states to the heads' results: to know when it would pay.

Nothing is computed with what comes of it, so its weights are made up; only their shapes are the model's.
"""

from __future__ import annotations

import torch

from device_agent.profiling.timing import Run
from split_model.spec import ModelSpec

MAX_BYTES = 256 << 20
"""Of what lies between two of its products: more of it would be measured by nobody's memory."""


def has_order(spec: ModelSpec) -> bool:
    """Whether the order is right for a model at all: it makes no keys that could be turned or normed."""
    return spec.positions != "rotary" and not spec.qk_norm


class ReorderedRuns:
    """softmax((x_p W_Q) W_K^T x^T) x W_V of all heads."""

    def __init__(self, spec: ModelSpec, dtype: torch.dtype) -> None:
        self._spec, self._dtype = spec, dtype
        shape = (spec.num_heads, spec.hidden_size, spec.head_dim)
        self._query, self._key, self._value = (torch.randn(shape, dtype=dtype) / shape[1] for _ in range(3))

    def fits(self, rows: int, positions: int) -> bool:
        """Whether what lies between its products is little enough to be measured."""
        widest = max(self._spec.hidden_size, positions)
        return self._spec.num_heads * rows * widest * self._dtype.itemsize <= MAX_BYTES

    def run(self, rows: int, positions: int) -> Run:
        """Of rows that see all of so many positions."""
        spec = self._spec
        own = torch.randn((rows, spec.hidden_size), dtype=self._dtype)
        seen = torch.randn((positions, spec.hidden_size), dtype=self._dtype)

        def run() -> torch.Tensor:
            wide = (own @ self._query) @ self._key.transpose(1, 2)
            shares = torch.softmax(wide @ seen.t(), -1)
            return ((shares @ seen) @ self._value).transpose(0, 1).reshape(rows, -1)

        return run
