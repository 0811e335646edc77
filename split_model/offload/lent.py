"""A matrix that is in memory only while it is lent."""

from __future__ import annotations

import torch

from split_model.matrix import Matrix


class LentMatrix(Matrix):
    """As `Matrix`, its weight in memory that belongs to a loader. Only its bias stays."""

    def __init__(self, name: str, shape: tuple[int, int], bias: torch.Tensor | None, device: torch.device) -> None:
        """name: of what it is a part, for whoever uses it when it is not there. shape: [out, in]. device: of what is
        lent."""
        self.bias = bias
        self.nbytes = 0 if bias is None else bias.nbytes
        """Bytes of what stays."""
        self.device = device
        self._name, self._shape = name, shape
        self._now: Matrix | None = None

    def lend(self, weight: torch.Tensor) -> None:
        """Multiplies from now on. weight [out, in]."""
        assert weight.shape == self._shape
        self._now = Matrix(weight, self.bias, pack=False)

    def take_back(self) -> None:
        """Its memory is another's from now on."""
        self._now = None

    @property
    def weight(self) -> torch.Tensor:
        """The elements, [out, in], while it is lent."""
        return self._lent().weight

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._lent()(rows)

    def _lent(self) -> Matrix:
        if self._now is None:
            raise RuntimeError(f"{self._name} is not in memory: it is only while its unit is used")
        return self._now
