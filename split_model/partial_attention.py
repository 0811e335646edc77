"""Attention over some of a sequence's positions, with what it takes to merge it with the others': where keys and values
lie apart, only queries and outputs have to travel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch

MOST_SCORES = 2**20
"""Scores that are in memory at a time, but for many rows: positions are attended to in blocks."""

LEAST_BLOCK = 64
"""Positions of a block at least."""


@dataclass(frozen=True)
class Partial:
    """Attention over some positions, as if there were no others. All is float32.

    Attributes:
        out: ``[rows, heads, head_dim]``; 0 for a row that sees none of them.
        lse: ``[rows, heads]``, the logarithm of the sum of the scores' exponentials; -inf for such a row.
    """

    out: torch.Tensor
    lse: torch.Tensor

    @property
    def context(self) -> torch.Tensor:
        """``[rows, heads * head_dim]``."""
        return self.out.flatten(1)

    def joined(self, other: Partial) -> Partial:
        """Attention over both's positions, which have none in common: exact but for rounding."""
        lse = torch.logaddexp(self.lse, other.lse)
        safe = lse.masked_fill(lse.isneginf(), 0.0)
        mine, others = (each.sub(safe).exp_().unsqueeze(2) for each in (self.lse, other.lse))
        return Partial(self.out * mine + other.out * others, lse)


def merged(parts: Sequence[Partial]) -> Partial:
    """Of one part at least, which have no positions in common."""
    return reduce(Partial.joined, parts)


def visible(start: int, rows: int, positions: range, window: int | None) -> torch.Tensor | None:
    """What the rows at positions ``start`` to ``start + rows`` see of some others: ``[rows, len(positions)]``, 0 or
    -inf, to be added to scores; None where each sees all of them.

    window: how many positions a row sees, its own included; None: all before it.
    """
    if positions.stop <= start + 1 and (window is None or positions.start > start + rows - 1 - window):
        return None
    places, at = torch.arange(positions.start, positions.stop), torch.arange(start, start + rows).unsqueeze(1)
    hidden = places > at
    if window is not None:
        hidden |= places <= at - window
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))


def attend_part(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None = None) -> Partial:
    """Attention of rows over some positions, one at least.

    q ``[rows, heads, head_dim]``; keys, values ``[kv_heads, positions, head_dim]``, of any strides. Query head h reads
    KV head h // (heads / kv_heads). mask: as ``visible`` gives it.
    """
    rows, heads, head_dim = q.shape
    kv_heads, positions, _ = keys.shape
    group = heads // kv_heads
    folded = q.float().mul(1 / math.sqrt(head_dim)).view(rows, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    folded = folded.reshape(kv_heads, group * rows, head_dim)
    block = max(LEAST_BLOCK, MOST_SCORES // max(rows * heads, 1))
    found: Partial | None = None
    for begin in range(0, positions, block):
        length = min(block, positions - begin)
        scores = torch.bmm(folded, keys.narrow(1, begin, length).float().transpose(1, 2))
        if mask is not None:
            scores.view(kv_heads, group, rows, length).add_(mask.narrow(1, begin, length))
        lse = scores.logsumexp(2)
        scores.sub_(lse.masked_fill(lse.isneginf(), 0.0).unsqueeze(2)).exp_()
        out = torch.bmm(scores, values.narrow(1, begin, length).float())
        out = out.view(kv_heads, group, rows, head_dim).permute(2, 0, 1, 3).reshape(rows, heads, head_dim)
        part = Partial(out, lse.view(kv_heads, group, rows).permute(2, 0, 1).reshape(rows, heads))
        found = part if found is None else found.joined(part)
    assert found is not None
    return found
