"""The drafters as differentiable networks: the same arithmetic as when they draft, over whole texts at once.

Parameters are named as the tensors of a drafter file. The final norm and the matrix to the vocabulary are the model's
own and frozen. Rows are [texts, width, hidden_size], float32, filled up on the right.

`drafted(rows, steps)` gives what a drafter sees at every depth: entry `s - 1` at position `p` is the row there when it
is the `s`-th row run since the text was last known, which was at its *root*, `p - s + 1`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from split_model.checkpoint import Checkpoint
from split_model.end_parts import head_parts
from split_model.errors import UnsupportedModel
from split_model.rope import Rope
from split_model.spec import ModelSpec

MEDUSA_HEADS = 4


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


def spread(rows: Tensor, places: Tensor) -> Tensor:
    """Rows [number of places, ...] where `places`, bool [texts, width], is true; zero elsewhere."""
    out = rows.new_zeros((*places.shape, *rows.shape[1:]))
    return out.index_put(tuple(places.nonzero().unbind(1)), rows)


def check_trainable(spec: ModelSpec) -> None:
    """Raises UnsupportedModel unless drafters for such a model can be trained: they have its kinds of norm and of
    positions, and these are an RMS norm and rotations."""
    if (spec.norm, spec.positions) != ("rms", "rotary"):
        raise UnsupportedModel(f"drafters cannot be trained for {spec.model_type} models")


class FrozenHead:
    """The model's final norm and matrix to the vocabulary, in float32."""

    def __init__(self, norm: Tensor, matrix: Tensor, eps: float) -> None:
        self.norm, self.matrix, self.eps = norm, matrix, eps

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> FrozenHead:
        """Of a model that `check_trainable` takes. Raises BadCheckpoint."""
        parts = head_parts(checkpoint.spec)
        assert parts.norm is not None
        return cls(checkpoint.read(parts.norm.name), checkpoint.read(parts.matrix.name), checkpoint.spec.norm_eps)

    def normed(self, rows: Tensor) -> Tensor:
        """Rows as the matrix reads them."""
        return rms(rows, self.norm, self.eps)

    def logits(self, normed: Tensor) -> Tensor:
        """[..., hidden_size] after the norm -> [..., vocab]."""
        return F.linear(normed, self.matrix)


class Attention(Scaled):
    """One self-attention module with the heads and rotations of the model's layers."""

    added: tuple[str, ...] = ("output",)

    def __init__(self, spec: ModelSpec, chance: torch.Generator) -> None:
        super().__init__()
        h, wide, narrow = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.spec = spec
        self.norm = nn.Parameter(torch.ones(h))
        self.query = _drawn(wide, h, chance)
        self.key = _drawn(narrow, h, chance)
        self.value = _drawn(narrow, h, chance)
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


class Adapter(Attention):
    """HAT's network: attention over the shallow rows, added to them. It knows all it needs at every depth."""

    kind = "adapter"
    form = "hat"

    def drafted(self, rows: Rows, steps: int) -> list[Tensor]:
        """Output rows, before the final norm; the same for all depths."""
        out = rows.shallow + self.over_text(*self.projected(rows.shallow))
        return [out] * steps


class Fused(Attention):
    """Attention over shallow rows into which the deep row of the position before is fused.

    x = keep * shallow + fuse(deep_norm(f)); y = x + attention(x); out = y + down(silu(up(mlp_norm(y)))).
    f: the deep row of the position before, or while drafting the drafter's own `out` there; for prompt rows there is
    none, and `fuse` adds nothing.
    """

    kind = "fused"
    added = ("output", "fuse", "down")

    def __init__(self, spec: ModelSpec, chance: torch.Generator, rank: int | None = None) -> None:
        """`rank`: of the MLP; None: as much as keeps all within 1.5 times the size of the attention; 0: none."""
        super().__init__(spec, chance)
        h = spec.hidden_size
        self.rank = largest_rank(spec) if rank is None else rank
        self.deep_norm = nn.Parameter(torch.ones(h))
        self.fuse = nn.Parameter(torch.zeros(h, h))
        self.keep = nn.Parameter(torch.ones(h))
        if self.rank:
            self.mlp_norm = nn.Parameter(torch.ones(h))
            self.up = _drawn(self.rank, h, chance)
            self.down = nn.Parameter(torch.zeros(h, self.rank))

    @property
    def form(self) -> str:
        """What `form` in the metadata of a drafter file says."""
        return "keep-mlp" if self.rank else "keep"

    def drafted(self, rows: Rows, steps: int) -> list[Tensor]:
        """Output rows, before the final norm, of each depth; behind a root zero where no draft of own tokens stands."""
        before = self._fused(later(rows.deep, 1)) * rows.known[..., None]
        shallow = self.keep * rows.shallow
        x = shallow + before
        q, *known = self.projected(x)
        outs = [self._after(x + self.over_text(q, *known))]
        own: list[tuple[Tensor, Tensor]] = []
        here = torch.ones_like(rows.known)
        for _ in range(1, steps):
            # Drafted rows are the model's own tokens, and so are all between them and the root.
            here = rows.known & later(here, 1) if own else rows.known
            x = shallow[here] + self._fused(later(outs[-1], 1)[here])
            q, key, value = (spread(each, here) for each in self.projected(x, here))
            own.append((key, value))
            seen = self.over_drafts(q, (known[0], known[1]), own)[here]
            outs.append(spread(self._after(x + F.linear(seen, self.output)), here))
        return outs

    def _fused(self, deep: Tensor) -> Tensor:
        return F.linear(rms(deep, self.deep_norm, self.spec.norm_eps), self.fuse)

    def _after(self, y: Tensor) -> Tensor:
        if not self.rank:
            return y
        wide = F.silu(F.linear(rms(y, self.mlp_norm, self.spec.norm_eps), self.up))
        return y + F.linear(wide, self.down)


def largest_rank(spec: ModelSpec) -> int:
    """The rank of the MLP with which a fused drafter has at most 1.5 times the parameters of its attention."""
    h = spec.hidden_size
    attention = 2 * h * (spec.num_heads + spec.num_kv_heads) * spec.head_dim
    norms = 4 * h  # norm, deep_norm, keep, mlp_norm
    return max(0, (attention // 2 - h * h - norms) // (2 * h))


class TrainableMedusaHead(nn.Module):
    """One of the heads: a residual block and a matrix to the vocabulary of its own."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        h = matrix.shape[1]
        self.block = nn.Parameter(torch.zeros(h, h))
        self.bias = nn.Parameter(torch.zeros(h))
        self.head = nn.Parameter(matrix.clone())

    def forward(self, normed: Tensor) -> Tensor:
        """[..., hidden_size], after the final norm -> logits [..., vocab]."""
        y = normed + F.silu(F.linear(normed, self.block, self.bias))
        return F.linear(y, self.head)


class Medusa(Scaled):
    """Heads that guess the second to fifth token after a position from its deep row."""

    kind = "medusa"
    form = "medusa"

    def __init__(self, head: FrozenHead) -> None:
        super().__init__()
        self.heads = nn.ModuleList(TrainableMedusaHead(head.matrix) for _ in range(MEDUSA_HEADS))


Drafter = Adapter | Fused | Medusa


def new_network(kind: str, spec: ModelSpec, head: FrozenHead, seed: int, rank: int | None = None) -> Drafter:
    """An untrained drafter."""
    chance = torch.Generator().manual_seed(seed)
    if kind == "adapter":
        return Adapter(spec, chance)
    if kind == "fused":
        return Fused(spec, chance, rank)
    assert kind == "medusa"
    return Medusa(head)


def parameters(network: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(each.numel() for each in network.parameters())


@contextmanager
def rounded(network: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Within, the parameters are what a file of `dtype` keeps of them."""
    exact = [each.detach().clone() for each in network.parameters()]
    with torch.no_grad():
        for each in network.parameters():
            each.copy_(each.to(dtype))
    try:
        yield
    finally:
        with torch.no_grad():
            for each, before in zip(network.parameters(), exact, strict=True):
                each.copy_(before)


def _drawn(out: int, width: int, chance: torch.Generator) -> nn.Parameter:
    return nn.Parameter(torch.randn((out, width), generator=chance) / math.sqrt(width))
