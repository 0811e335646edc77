"""Relative positions: what is added to the score of a row and a position, by how far the one is from the other."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from split_model.attention import Sight, sight_of
from split_model.checkpoint import Checkpoint
from split_model.device import put
from split_model.families.architecture import Relative
from split_model.matrix import read_table
from split_model.new_rows import NewRows, positions_of
from split_model.weight_parts import relative_part


class RelativeBias:
    """T5's, the same in all layers: near distances each have a number, farther ones share them in *buckets*."""

    def __init__(self, spec: Relative, table: torch.Tensor, both_ways: bool) -> None:
        """table [buckets, heads]. both_ways: whether rows also see what comes behind them."""
        self._spec, self._table, self._both_ways = spec, table, both_ways

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        heads: range | None,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> RelativeBias | None:
        """The numbers of some heads; None for a model that has none. Raises BadCheckpoint."""
        spec = checkpoint.spec
        part = relative_part(spec, heads)
        if part is None or spec.relative is None:
            return None
        return cls(spec.relative, read_table(checkpoint, part, dtype, device), spec.attention == "bidirectional")

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self._table.nbytes

    def between(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """What is added for rows and positions, int64 [rows] and [positions] on the host: [heads, rows, positions]."""
        buckets = self._buckets(positions[None, :] - rows[:, None])
        return functional.embedding(put(buckets, self._table.device), self._table).permute(2, 0, 1)

    def all_see_all(self, length: int) -> torch.Tensor:
        """Of a whole sequence of rows that see one another: [heads, length, length]."""
        places = torch.arange(length)
        return self.between(places, places)

    def sight(self, new: NewRows) -> Sight:
        """What new rows of a session see, with what is added to their scores; its mask is [heads, 1, rows, length]."""
        rows = list(positions_of(new))
        before = range(new.start) if new.branching is None else range(new.branching.trunk)
        places = [*before, *(rows if new.branching is None else new.branching.positions)]
        bias = self.between(torch.tensor(rows), torch.tensor(places))
        seen = sight_of(new, None, bias.dtype, bias.device)
        if seen.mask is not None:
            bias = bias + seen.mask
        elif seen.causal:
            hidden = torch.ones((len(rows), len(places)), dtype=torch.bool).triu_(1)
            bias = bias.masked_fill(put(hidden, bias.device), -math.inf)
        return Sight(0, len(places), bias.unsqueeze(1), causal=False)

    def _buckets(self, distance: torch.Tensor) -> torch.Tensor:
        """The bucket of each distance, position less row; as transformers computes it, in float32."""
        count, begin = self._spec.buckets, torch.zeros_like(distance)
        if self._both_ways:
            count //= 2
            begin = (distance > 0).long() * count
            distance = distance.abs()
        else:
            distance = distance.neg().clamp(min=0)
        exact = count // 2
        far = torch.log(distance.float() / exact) / math.log(self._spec.farthest / exact) * (count - exact)
        # Behind log(0) there is no number to convert.
        far = exact + torch.where(distance < exact, 0.0, far).long()
        return begin + torch.where(distance < exact, distance, far.clamp(max=count - 1))
