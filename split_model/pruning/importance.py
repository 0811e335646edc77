"""How much heads tell words apart: Eq. 12 and 13 of the EdgeFormer paper, over some rows of a text.

Two things are mended. Variance and entropy of the paper have opposite signs, and the entropy is log(n) times as large,
so that heads which look nowhere would score best; and a causal row has no weights behind itself, which are not zeros
to be counted. The literal sum is kept for comparison.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch

Measure = Literal["variance", "entropy", "literal"]

ROWS = 32
"""Rows looked at in one chunk of a text."""


def attention_weights(q: torch.Tensor, k: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
    """Eq. 12 of some rows: q [rows, heads, head_dim] at `positions`, ascending, k [n, kv_heads, head_dim] from
    position 0 on, both rotated. Returns float32 [heads, rows, n], 0 behind each row's own position."""
    heads, kv_heads = q.shape[1], k.shape[1]
    wide = k.float().transpose(0, 1).repeat_interleave(heads // kv_heads, 0)
    scores = q.float().transpose(0, 1) @ wide.transpose(1, 2) / math.sqrt(q.shape[2])
    hidden = torch.arange(k.shape[0], device=k.device) > torch.tensor(positions, device=k.device)[:, None]
    return scores.masked_fill_(hidden, -math.inf).softmax(-1)


def importance(weights: torch.Tensor, positions: Sequence[int], measure: Measure = "variance") -> list[float]:
    """Eq. 13, mended, of each head; weights as `attention_weights` gives them, of rows that see two positions or more.

    variance: m * var over the m entries that a row sees, between 0 and 1. entropy: 1 - H / log(m), likewise.
    literal: the paper's sum over all n entries of a row, var + H, where larger is more diffuse.
    """
    seen = torch.tensor(positions, device=weights.device).float() + 1
    entropy = torch.special.entr(weights).sum(-1)
    if measure == "literal":
        variance = weights.var((1, 2), correction=0)
        return _listed(variance + entropy.mean(1))
    if measure == "entropy":
        return _listed((1 - entropy / seen.log()).mean(1))
    # The mean over a row is 1 / m: m * var = sum of squares - 1 / m.
    return _listed((weights.square().sum(-1) - 1 / seen).mean(1))


def _listed(scores: torch.Tensor) -> list[float]:
    return [float(each) for each in scores.cpu()]
