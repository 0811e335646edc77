"""Attention of one sequence's new rows over its keys and values so far: the one seam for faster kernels."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention


def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, window: int | None) -> torch.Tensor:
    """Causal attention by absolute position.

    q [rows, heads, head_dim]: the rows at positions `start` to `start + rows`.
    keys, values [kv_heads, start + rows, head_dim]: from position 0 on, the new rows included.
    window: how many positions a row sees, its own included; None: all before it.
    Returns [rows, heads * head_dim], of q's dtype. Query head h reads KV head h // (heads / kv_heads).
    """
    rows, heads, head_dim = q.shape
    kv_heads, length, _ = keys.shape
    if heads == 0:
        return q.new_empty((rows, 0))
    if window is not None and start - window + 1 > 0:
        # Positions before the first row's window are out of sight of every row.
        first = start - window + 1
        keys, values = keys.narrow(1, first, length - first), values.narrow(1, first, length - first)
        start, length = start - first, length - first
    group = heads // kv_heads
    if rows == 1:
        # One row sees all that is left, so there is no mask; a group's heads stand in for rows.
        context = scaled_dot_product_attention(
            q.view(1, kv_heads, group, head_dim), keys.unsqueeze(0), values.unsqueeze(0)
        )
        return context.reshape(1, heads * head_dim)
    # [kv_heads, group, rows, head_dim], each KV head shared by its group without a copy.
    grouped = q.view(rows, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    shape = (kv_heads, group, length, head_dim)
    shared_keys, shared_values = keys.unsqueeze(1).expand(shape), values.unsqueeze(1).expand(shape)
    if start == 0 and (window is None or window >= rows):
        context = scaled_dot_product_attention(grouped, shared_keys, shared_values, is_causal=True)
    else:
        seen = torch.ones((rows, length), dtype=torch.bool, device=q.device).tril_(start)
        if window is not None:
            seen.triu_(start - window + 1)
        context = scaled_dot_product_attention(grouped, shared_keys, shared_values, attn_mask=seen)
    return context.permute(2, 0, 1, 3).reshape(rows, heads * head_dim)
