"""What trainable drafters are made of: rows of texts side by side, and attention over them, as when they draft.

Rows are [texts, width, hidden_size], float32, filled up on the right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from split_model.rope import Rope
from split_model.spec import ModelSpec


@dataclass(frozen=True)
class Rows:
    """Texts side by side.

    Attributes:
        shallow, deep: float32 [texts, width, hidden_size].
        known: bool [texts, width], whether the deep row of the position *before* comes back from a verification: true
            for tokens that the model chose.
    """

    shallow: Tensor
    deep: Tensor
    known: Tensor


def rms(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm of `split_model.norm`, differentiable."""
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps) * weight


def later(rows: Tensor, by: int) -> Tensor:
    """Each position gets the row `by` positions before it; zero where there is none. rows [texts, width, ...]."""
    return rows if not by else torch.cat((torch.zeros_like(rows[:, :by]), rows[:, :-by]), 1)


def spread(rows: Tensor, places: Tensor) -> Tensor:
    """Rows [number of places, ...] where `places`, bool [texts, width], is true; zero elsewhere."""
    out = rows.new_zeros((*places.shape, *rows.shape[1:]))
    return out.index_put(tuple(places.nonzero().unbind(1)), rows)


class Scaled(nn.Module):
    """A network whose rows may be trained in another unit than the model's.

    The shallow rows of a model can be a hundred times as long as what fresh matrices give, and training would spend
    its time on making these matrices grow. So rows are divided by a unit, and the matrices that are added to them
    multiplied by it in the end; the norms all around make that the same network.
    """

    added: tuple[str, ...] = ()
    """The parameters whose products are added to a row."""

    @torch.no_grad()
    def in_rows_of(self, unit: float) -> None:
        """From rows divided by `unit` to rows as they are."""
        for name in self.added:
            parameter = getattr(self, name, None)
            if parameter is not None:
                parameter.mul_(unit)


class Attention(Scaled):
    """One self-attention module with the heads and rotations of the model's layers."""

    added: tuple[str, ...] = ("output",)

    def __init__(self, spec: ModelSpec, chance: torch.Generator) -> None:
        super().__init__()
        h, wide, narrow = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.spec = spec
        self.norm = nn.Parameter(torch.ones(h))
        self.query = drawn(wide, h, chance)
        self.key = drawn(narrow, h, chance)
        self.value = drawn(narrow, h, chance)
        # Starts as nothing, so that training starts from the row that goes in.
        self.output = nn.Parameter(torch.zeros(h, wide))
        self._rope = Rope(spec.rope, torch.float32)

    def projected(self, rows: Tensor, places: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """q [..., heads, head_dim], rotated; k and v likewise, of kv_heads.

        rows: [texts, width, hidden_size]; or with `places` bool [texts, width] the rows at those places only.
        """
        spec = self.spec
        normed = rms(rows, self.norm, spec.norm_eps)
        cos, sin = self._rope.span(0, rows.shape[1] if places is None else places.shape[1])
        if places is not None:
            positions = places.nonzero()[:, 1]
            cos, sin = cos[positions], sin[positions]
        joined = F.linear(normed, torch.cat((self.query, self.key, self.value)))
        heads = joined.view(*rows.shape[:-1], -1, spec.head_dim)
        turned, v = heads.split_with_sizes([spec.num_heads + spec.num_kv_heads, spec.num_kv_heads], -2)
        turned = torch.addcmul(turned * cos, turned.roll(spec.head_dim // 2, -1), sin)
        q, k = turned.split_with_sizes([spec.num_heads, spec.num_kv_heads], -2)
        return q, k, v

    def over_text(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What every row sees of itself and all before it, [texts, width, hidden_size]."""
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.linear(context.transpose(1, 2).flatten(2), self.output)

    def over_drafts(self, q: Tensor, known: tuple[Tensor, Tensor], own: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The same for rows that are `len(own)` rows behind their root, before the output's matrix.

        Args:
            known: keys and values of the rows as they are when observed; seen up to the root.
            own: keys and values of the rows drafted since, entry `j` of those `j + 1` behind their root; the last are
                the rows themselves.
        """
        texts, width, heads, head_dim = q.shape
        kv = self.spec.num_kv_heads
        group = heads // kv
        back = len(own)
        grouped = q.reshape(texts, width, kv, group, head_dim) / math.sqrt(head_dim)
        # [texts, kv, group * width, head_dim]: the heads that share a KV head stand in for rows.
        as_rows = grouped.permute(0, 2, 3, 1, 4).reshape(texts, kv, group * width, head_dim)
        hidden = torch.ones((width, width), dtype=torch.bool).triu_(1 - back).repeat(group, 1)
        over_known = (as_rows @ known[0].permute(0, 2, 3, 1)).masked_fill(hidden, float("-inf"))
        scores = [over_known.view(texts, kv, group, width, width)]
        # The row of depth j + 1 behind the root of p stands at p - (back - 1 - j).
        keys, values = zip(
            *((later(k, back - 1 - j), later(v, back - 1 - j)) for j, (k, v) in enumerate(own)), strict=True
        )
        for key in keys:
            # One key for each row: products of vectors, [texts, width, kv, group] -> [texts, kv, group, width, 1].
            scores.append((grouped * key[:, :, :, None]).sum(-1).permute(0, 2, 3, 1)[..., None])
        weights = torch.cat(scores, -1).softmax(-1)
        on_known = weights[..., :width].reshape(texts, kv, group * width, width)
        context = (on_known @ known[1].transpose(1, 2)).view(texts, kv, group, width, head_dim).permute(0, 3, 1, 2, 4)
        for j, value in enumerate(values):
            context = context + weights[..., width + j].permute(0, 3, 1, 2)[..., None] * value[:, :, :, None]
        return context.flatten(2)


def drawn(out: int, width: int, chance: torch.Generator) -> nn.Parameter:
    """A matrix to begin with, [out, width]."""
    return nn.Parameter(torch.randn((out, width), generator=chance) / math.sqrt(width))
