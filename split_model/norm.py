"""Normalisation of rows, in the arithmetic of the Hugging Face models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch.nn import functional

from split_model.checkpoint import Checkpoint
from split_model.matrix import read_stacked
from split_model.weight_parts import WeightPart


class Norm(Protocol):
    """Rows to rows, each treated alone."""

    @property
    def nbytes(self) -> int:
        """Bytes of its weights."""
        ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., size] -> [..., size]. Not always a new tensor."""
        ...


class RmsNorm:
    """weight * x / sqrt(mean(x^2) + eps) over the last dimension; computed in float32 whatever the dtype."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        """weight [size], in the dtype of the rows to come."""
        self.weight = weight
        size = weight.shape[0]
        self._exact = weight.dtype == torch.float32
        # sqrt(mean + eps) = hypot(norm, sqrt(size * eps)) / sqrt(size): four kernels instead of seven.
        self._floor = torch.tensor(math.sqrt(size * eps)).to(weight.device)
        root = torch.tensor(math.sqrt(size)).to(weight.device)
        self._scaled = weight * root if self._exact else root

    @property
    def nbytes(self) -> int:
        """See `Norm`."""
        return self.weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., size] -> [..., size]."""
        if self._exact:
            length: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            return (x / length.hypot_(self._floor)).mul_(self._scaled)
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        return (wide / length.hypot_(self._floor)).mul_(self._scaled).to(x.dtype).mul_(self.weight)


class LayerNorm:
    """weight * (x - mean) / sqrt(variance + eps) + bias over the last dimension."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> None:
        """weight, bias [size], in the dtype of the rows to come."""
        self.weight, self.bias = weight, bias
        self._eps = eps

    @property
    def nbytes(self) -> int:
        """See `Norm`."""
        return self.weight.nbytes + self.bias.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., size] -> [..., size]."""
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self._eps)


class NoNorm:
    """Rows as they are."""

    nbytes = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`x` itself."""
        return x


def load_norm(
    checkpoint: Checkpoint,
    parts: Sequence[WeightPart | None],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Norm:
    """A norm of the model's kind from the parts of its weight and its bias, or `NoNorm` where it has neither.

    Raises BadCheckpoint.
    """
    spec = checkpoint.spec
    weights = [read_stacked(checkpoint, [part], dtype, device) for part in parts if part is not None]
    if not weights:
        return NoNorm()
    if spec.norm == "rms":
        [weight] = weights
        return RmsNorm(weight, spec.norm_eps)
    assert spec.norm == "layer"
    weight, bias = weights
    return LayerNorm(weight, bias, spec.norm_eps)
