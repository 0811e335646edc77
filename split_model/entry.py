"""What becomes of embedded rows before the first layer: whoever holds that layer does it."""

from __future__ import annotations

import torch

from split_model.checkpoint import Checkpoint
from split_model.end_parts import entry_parts
from split_model.matrix import read_table
from split_model.norm import Norm, load_norm
from split_model.positions import LearnedPositions, PlacedRows


class RowEntry:
    """Rows of learned positions are added; a norm may follow."""

    def __init__(self, positions: LearnedPositions, norm: Norm) -> None:
        self._positions, self._norm = positions, norm

    @classmethod
    def load(cls, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device | str = "cpu") -> RowEntry | None:
        """None for a model whose rows go into the first layer as they are embedded. Raises BadCheckpoint."""
        parts = entry_parts(checkpoint.spec)
        if parts.positions is None:
            return None
        table = read_table(checkpoint, parts.positions, dtype, device).view(-1, checkpoint.spec.hidden_size)
        return cls(LearnedPositions(table), load_norm(checkpoint, (parts.norm, parts.norm_bias), dtype, device))

    @property
    def nbytes(self) -> int:
        """Bytes of the weights held."""
        return self._positions.nbytes + self._norm.nbytes

    def __call__(self, hidden: torch.Tensor, placed: PlacedRows) -> torch.Tensor:
        """hidden [rows, hidden], embedded, to new rows for the first layer."""
        [learned] = placed.look_up(self._positions)
        return self._norm(hidden + learned)
