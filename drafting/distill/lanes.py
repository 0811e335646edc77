"""Many texts side by side through the layers of a model: rows of equal length, filled up on the right.

This is a `Batch` of `split_model.stack` that is made for throughput: one attention for all lanes together, where a
device or a cloud has a cache for each session.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from split_model.positions import PositionTable
from split_model.stack import Stack


class Lanes:
    """Keys and values of `count` texts of at most `capacity` positions in every layer of a stack."""

    def __init__(self, stack: Stack, count: int, capacity: int) -> None:
        shape = (count, stack.kv_heads, capacity, stack.spec.head_dim)
        self.keys = [torch.zeros(shape, dtype=stack.dtype) for _ in stack.blocks]
        self.values = [torch.zeros(shape, dtype=stack.dtype) for _ in stack.blocks]
        self.lengths = torch.zeros(count, dtype=torch.int64)

    def keep(self, lanes: torch.Tensor) -> None:
        """Keep only these lanes, int64 indices."""
        self.keys = [each[lanes] for each in self.keys]
        self.values = [each[lanes] for each in self.values]
        self.lengths = self.lengths[lanes]


class Prompts:
    """The first `width` rows of every lane. What fills a lane up is seen by nothing before it."""

    def __init__(self, lengths: torch.Tensor, width: int, lanes: Lanes | None = None) -> None:
        """`lengths` int64 [lanes], each at most `width`. Without `lanes`, nothing is stored."""
        self.rows = len(lengths) * width
        self._lengths, self._width, self._lanes = lengths, width, lanes

    def look_up(self, table: PositionTable) -> tuple[torch.Tensor, ...]:
        count = len(self._lengths)
        return tuple(torch.cat([each] * count) for each in table.span(0, self._width))

    def attend(self, layer: int, window: int | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        width = self._width
        q, k, v = (each.view(-1, width, *each.shape[1:]).transpose(1, 2) for each in (q, k, v))
        if self._lanes is not None:
            self._lanes.keys[layer][:, :, :width] = k
            self._lanes.values[layer][:, :, :width] = v
        mask = None
        if window is not None and window < width:
            mask = torch.ones((width, width), dtype=torch.bool).tril_().triu_(1 - window)
        context = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        return context.transpose(1, 2).reshape(self.rows, -1)

    def advance(self) -> None:
        if self._lanes is not None:
            self._lanes.lengths = self._lengths


class NextRows:
    """One more row for every lane."""

    def __init__(self, lanes: Lanes) -> None:
        self.rows = len(lanes.lengths)
        self._lanes = lanes
        self._end = int(lanes.lengths.max()) + 1

    def look_up(self, table: PositionTable) -> tuple[torch.Tensor, ...]:
        return table.positions(self._lanes.lengths, self._end)

    def attend(self, layer: int, window: int | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys, values, at = self._lanes.keys[layer], self._lanes.values[layer], self._lanes.lengths
        every = torch.arange(self.rows)
        keys[every, :, at], values[every, :, at] = k, v
        places = torch.arange(self._end)
        seen = places <= at[:, None]
        if window is not None:
            seen &= places > at[:, None] - window
        # The heads that share a KV head stand in for rows.
        grouped = q.view(self.rows, keys.shape[1], -1, q.shape[-1])
        context = scaled_dot_product_attention(
            grouped, keys[:, :, : self._end], values[:, :, : self._end], attn_mask=seen[:, None, None]
        )
        return context.reshape(self.rows, -1)

    def advance(self) -> None:
        self._lanes.lengths = self._lanes.lengths + 1
