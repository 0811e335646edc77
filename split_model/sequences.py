"""A step's rows as whole sequences whose rows all see one another; nothing is kept of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention

from split_model.positions import PositionTable
from split_model.relative import RelativeBias


class Sequences:
    """See `split_model.stack.Batch`: the rows of one sequence or more, one after the other."""

    def __init__(self, lengths: Sequence[int], relative: RelativeBias | None = None) -> None:
        """lengths: rows of each sequence, from position 0 on. relative: the stack's own.

        Raises ValueError for a sequence without rows.
        """
        if min(lengths, default=1) < 1:
            raise ValueError(f"sequences have {list(lengths)} rows; each needs one at least")
        self.rows = sum(lengths)
        self._lengths = list(lengths)
        # All layers add the same to their scores.
        self._added = {length: relative.all_see_all(length) for length in set(lengths)} if relative else {}

    def look_up(self, table: PositionTable) -> tuple[torch.Tensor, ...]:
        found = [table.span(0, length) for length in self._lengths]
        return found[0] if len(found) == 1 else tuple(map(torch.cat, zip(*found, strict=True)))

    def attend(self, layer: int, window: int | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if not q.shape[1]:
            return q.new_empty((self.rows, 0))
        if len(set(self._lengths)) == 1:
            return self._attend(len(self._lengths), q, k, v)
        parts = (each.split_with_sizes(self._lengths) for each in (q, k, v))
        return torch.cat([self._attend(1, *of_sequence) for of_sequence in zip(*parts, strict=True)])

    def advance(self) -> None:
        """Nothing is kept."""

    def _attend(self, count: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Of `count` sequences of equal length: q, k, v [rows, heads, head_dim] -> [rows, heads * head_dim]."""
        added = self._added.get(q.shape[0] // count)
        q, k, v = (each.view(count, -1, *each.shape[1:]).transpose(1, 2) for each in (q, k, v))
        context = scaled_dot_product_attention(q, k, v, attn_mask=added, enable_gqa=q.shape[1] != k.shape[1])
        return context.transpose(1, 2).flatten(2).flatten(0, 1)
