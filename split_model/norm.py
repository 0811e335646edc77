"""RMS normalisation of rows, in the arithmetic of the Hugging Face models."""

from __future__ import annotations

import math

import torch


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

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., size] -> [..., size]."""
        if self._exact:
            length: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            return (x / length.hypot_(self._floor)).mul_(self._scaled)
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        return (wide / length.hypot_(self._floor)).mul_(self._scaled).to(x.dtype).mul_(self.weight)
