"""Attention in the order of Voltage's Eq. 8, of a member's own rows to rows of all: no keys and no values are made.

A head's scores are ((x_p W_Q) W_K^T) x^T and its context is (S x) W_V, so nothing is made of the other members' rows
before they are attended to, tile by tile as they come; what tiles say is merged by their highest scores and sums. What
a key's bias would add to a row's scores is the same at all positions, and softmax takes it away; a value's bias is
added once, since a row's weights sum to one. For one-shot work alone: later rows would have nothing to attend to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from device_agent.group.rows.layout import overlap
from device_agent.group.rows.step_rows import GroupStretch, StepRows
from split_model.blocks import Block


def attend_reordered(
    blocks: Sequence[Block],
    on: StepRows,
    queries: Iterable[torch.Tensor],
    rows: range,
    shared: torch.Tensor,
    coming: Iterable[range],
) -> list[torch.Tensor]:
    """Of each block the context ``[len(rows), heads * head_dim]``.

    Args:
        queries: of each, ``[len(rows), heads, head_dim]``.
        rows: of the step, those that attend.
        shared: all rows ``[rows, hidden]``, behind the layer's norm, as far as they have come.
        coming: tiles of them, as they come.
    """
    seekers = [
        [
            _Seeker(on, block, stretch, mine, q[mine.start - rows.start : mine.stop - rows.start])
            for stretch in on.stretches
            if (mine := overlap(stretch.rows, rows)) and block.heads
        ]
        for block, q in zip(blocks, queries, strict=True)
    ]
    for tile in coming:
        for seeker in (seeker for of_block in seekers for seeker in of_block):
            seeker.add(tile, shared)
    return [
        torch.cat([seeker.context() for seeker in of_block])
        if of_block
        else shared.new_zeros((len(rows), block.heads * block.head_dim))
        for block, of_block in zip(blocks, seekers, strict=True)
    ]


class _Seeker:
    """Some rows of a stretch, and what they have found so far."""

    def __init__(self, on: StepRows, block: Block, stretch: GroupStretch, rows: range, q: torch.Tensor) -> None:
        self._block, self._stretch, self._rows = block, stretch, rows
        self._all_see_all = on.all_see_all
        # [kv_heads, rows * heads_per_group, hidden]
        self._sought = block.qkv.sought(q * (1 / math.sqrt(block.head_dim)))
        self._found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def add(self, tile: range, shared: torch.Tensor) -> None:
        """Look at those of the tile's rows that are of this stretch."""
        last = self._stretch.rows.stop if self._all_see_all else self._rows.stop
        seen = overlap(range(self._stretch.rows.start, last), tile)
        if not seen:
            return
        rows = shared[seen.start : seen.stop]
        scores = (self._sought @ rows.t()).float()
        if not self._all_see_all:
            self._hide(scores, seen)
        highest, total, mixed = scores.amax(-1, keepdim=True), None, None
        if self._found is not None:
            before, total, mixed = self._found
            highest = torch.maximum(before, highest)
            fade = (before - highest).exp_()
            total, mixed = total.mul_(fade), mixed.mul_(fade)
        weights = scores.sub_(highest).exp_()
        more = weights.sum(-1, keepdim=True)
        total = more if total is None else total.add_(more)
        if mixed is None:
            mixed = (weights.to(rows.dtype) @ rows).float()
        elif rows.dtype == mixed.dtype:
            # Of all that is done for a tile, one more pass over this takes longest.
            mixed.flatten(0, 1).addmm_(weights.flatten(0, 1), rows)
        else:
            mixed.add_(weights.to(rows.dtype) @ rows)
        self._found = highest, total, mixed

    def context(self) -> torch.Tensor:
        """Of all that was looked at, ``[rows, heads * head_dim]``."""
        assert self._found is not None  # A row sees itself at least.
        _, total, mixed = self._found
        return self._block.qkv.valued((mixed / total).to(self._sought.dtype))

    def _hide(self, scores: torch.Tensor, seen: range) -> None:
        """What lies behind a row, or too far before it. The least number instead of none: a row may see nothing of
        this tile, and what it found of such is forgotten when it sees itself."""
        row = torch.arange(self._rows.start, self._rows.stop, device=scores.device)[:, None]
        position = torch.arange(seen.start, seen.stop, device=scores.device)
        hidden = position > row
        if self._block.window is not None:
            hidden |= position <= row - self._block.window
        by_row = scores.view(len(scores), len(self._rows), -1, len(seen))
        by_row.masked_fill_(hidden[:, None, :], torch.finfo(scores.dtype).min)
