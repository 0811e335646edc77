"""Attention of one sequence's new rows over its keys and values so far: the exact one, which all others are held to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from split_model.device import put
from split_model.new_rows import NewRows
from split_model.tree import Branches

FOLD_ROWS = 64
"""Of at most this many rows the heads that share a KV head are computed as rows of one: its keys and values are then
read once and not once for each. Where rows are more, that read is little beside the products, and the mask large."""


@dataclass(frozen=True)
class Sight:
    """What consecutive rows of one sequence see of its positions. The same in every layer with the same window.

    Positions before `first` are out of sight of every row; the `length` from there on end with the last row.
    mask: [rows, length], 0 or -inf, added to the scores; None where `causal` says it, or one row sees all.
    """

    first: int
    length: int
    mask: torch.Tensor | None
    causal: bool


def sight(start: int, rows: int, window: int | None, dtype: torch.dtype, device: torch.device | str) -> Sight:
    """The sight of the rows at positions `start` to `start + rows`; a mask is of `dtype`, the queries' own.

    window: how many positions a row sees, its own included; None: all before it.
    """
    first = 0 if window is None else max(0, start - window + 1)
    start -= first
    length = start + rows
    if rows == 1:
        return Sight(first, length, None, causal=False)
    if start == 0 and (window is None or window >= rows):
        return Sight(first, length, None, causal=True)
    seen = torch.ones((rows, length), dtype=torch.bool, device=device).tril_(start)
    if window is not None:
        seen.triu_(start - window + 1)
    mask = torch.zeros((rows, length), dtype=dtype, device=device).masked_fill_(seen.logical_not_(), float("-inf"))
    return Sight(first, length, mask, causal=False)


def branching_sight(rows: Branches, window: int | None, dtype: torch.dtype, device: torch.device | str) -> Sight:
    """The sight of rows that branch: the trunk, and of the nodes behind it each row's own path."""
    seen = torch.zeros((rows.rows, rows.length), dtype=torch.bool)
    seen[:, : rows.trunk] = True
    for row, path in enumerate(rows.seen):
        seen[row, torch.tensor(path) + rows.trunk] = True
    if window is not None:
        places = torch.tensor([*range(rows.trunk), *rows.positions])
        seen &= places > places[-rows.rows :, None] - window
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(seen.logical_not_(), float("-inf"))
    return Sight(0, rows.length, put(mask, device), causal=False)


def sight_of(new: NewRows, window: int | None, dtype: torch.dtype, device: torch.device | str) -> Sight:
    """The sight of new rows, whether they branch or not."""
    if new.branching is None:
        return sight(new.start, new.rows, window, dtype, device)
    return branching_sight(new.branching, window, dtype, device)


def attend_in(seen: Sight, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """As `attend`, with keys and values [kv_heads, seen.length, head_dim] of the positions in sight, of any strides."""
    rows, heads, head_dim = q.shape
    if heads == 0:
        return q.new_empty((rows, 0))
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    if rows == 1 and seen.mask is None:
        # One row sees all that is left, so there is no mask; a group's heads stand in for rows.
        context = scaled_dot_product_attention(
            q.view(1, kv_heads, group, head_dim), keys.unsqueeze(0), values.unsqueeze(0)
        )
        return context.reshape(1, heads * head_dim)
    if seen.mask is not None and rows <= FOLD_ROWS and group > 1:
        folded = (
            q.view(rows, kv_heads, group, head_dim).permute(1, 2, 0, 3).reshape(1, kv_heads, group * rows, head_dim)
        )
        context = scaled_dot_product_attention(
            folded, keys.unsqueeze(0), values.unsqueeze(0), attn_mask=seen.mask.repeat(group, 1)
        )
        return context.view(kv_heads, group, rows, head_dim).permute(2, 0, 1, 3).reshape(rows, heads * head_dim)
    # [kv_heads, group, rows, head_dim], each KV head shared by its group without a copy.
    grouped = q.view(rows, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    shape = (kv_heads, group, seen.length, head_dim)
    context = scaled_dot_product_attention(
        grouped,
        keys.unsqueeze(1).expand(shape),
        values.unsqueeze(1).expand(shape),
        attn_mask=seen.mask,
        is_causal=seen.causal,
    )
    return context.permute(2, 0, 1, 3).reshape(rows, heads * head_dim)


def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, window: int | None) -> torch.Tensor:
    """Causal attention by absolute position.

    q [rows, heads, head_dim]: the rows at positions `start` to `start + rows`.
    keys, values [kv_heads, start + rows, head_dim]: from position 0 on, the new rows included.
    window: how many positions a row sees, its own included; None: all before it.
    Returns [rows, heads * head_dim], of q's dtype. Query head h reads KV head h // (heads / kv_heads).
    """
    seen = sight(start, q.shape[0], window, q.dtype, q.device)
    return attend_in(seen, q, keys.narrow(1, seen.first, seen.length), values.narrow(1, seen.first, seen.length))
