"""The drafters as differentiable networks: the same arithmetic as when they draft, over whole texts at once.

Parameters are named as the tensors of a drafter file. The final norm and the matrix to the vocabulary are the model's
own and frozen. Rows are [texts, width, hidden_size], float32, filled up on the right.

`drafted(rows, steps)` gives what a drafter sees at every depth: entry `s - 1` at position `p` is the row there when it
is the `s`-th row run since the text was last known, which was at its *root*, `p - s + 1`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drafting.distill.trainable import Attention, Rows, Scaled, drawn, later, rms, spread
from drafting.drafter_file import can_be_trained
from split_model.checkpoint import Checkpoint
from split_model.end_parts import head_parts
from split_model.errors import UnsupportedModel
from split_model.spec import ModelSpec

MEDUSA_HEADS = 4


def check_trainable(spec: ModelSpec) -> None:
    """Raises UnsupportedModel unless drafters for such a model can be trained."""
    if not can_be_trained(spec):
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
        matrix = checkpoint.read(checkpoint.head_matrix().name)
        return cls(checkpoint.read(parts.norm.name), matrix, checkpoint.spec.norm_eps)

    def normed(self, rows: Tensor) -> Tensor:
        """Rows as the matrix reads them."""
        return rms(rows, self.norm, self.eps)

    def logits(self, normed: Tensor) -> Tensor:
        """[..., hidden_size] after the norm -> [..., vocab]."""
        return F.linear(normed, self.matrix)


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
            self.up = drawn(self.rank, h, chance)
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
