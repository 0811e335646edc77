"""Consecutive layers over a ragged batch of sessions, and the two ends of the model.

The rows of all sessions go through the matrix products together; only attention looks at one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from split_model.attention import attend
from split_model.blocks import Block, load_matrix
from split_model.checkpoint import Checkpoint
from split_model.kv_cache import CacheFull, KVCache
from split_model.norm import RmsNorm
from split_model.rope import Rope
from split_model.slices import Slice
from split_model.spec import ModelSpec
from split_model.weight_parts import embedding_part, head_parts


@dataclass(frozen=True)
class Span:
    """`rows` consecutive rows of a batch: the new positions of one session, from its cache's length on."""

    cache: KVCache
    rows: int


class Stack:
    """The layers of a slice. Not safe for concurrent calls with the same cache; with different caches it is."""

    def __init__(self, spec: ModelSpec, held: Slice, blocks: Sequence[Block], dtype: torch.dtype) -> None:
        self.spec = spec
        self.slice = held
        self.blocks = tuple(blocks)
        self.dtype = dtype
        self.rope = Rope(spec.rope, dtype)
        groups = range(spec.num_kv_heads) if held.kv_groups is None else held.kv_groups
        self._kv_heads = len(groups)

    @classmethod
    def load(cls, checkpoint: Checkpoint, held: Slice, dtype: torch.dtype) -> Stack:
        """Reads the layers of a slice, never more than its own bytes and one block.

        Ignores `embedding` and `head`. Raises ValueError for a slice past the model, BadCheckpoint.
        """
        held.check(checkpoint.spec)
        layers = range(held.first_layer, held.last_layer)
        blocks = [Block(checkpoint, layer, dtype, held.kv_groups, held.columns) for layer in layers]
        return cls(checkpoint.spec, held, blocks, dtype)

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return sum(block.loaded_bytes for block in self.blocks)

    def new_cache(self, limit: int) -> KVCache:
        """An empty cache for one session of at most `limit` positions."""
        return KVCache(len(self.blocks), self._kv_heads, self.spec.head_dim, self.dtype, limit)

    @torch.inference_mode()
    def forward(self, hidden: torch.Tensor, spans: Sequence[Span]) -> torch.Tensor:
        """Runs the new rows of every span through the layers and appends them to its cache.

        hidden [rows, hidden], of the stack's dtype: the spans' rows one after the other. Returns [rows, hidden];
        with no layers, `hidden` itself. Raises, before any cache changes, CacheFull where a span does not
        fit, ValueError where the spans do not add up to the rows, share a cache or the slice is a shard.
        """
        self._check(hidden, spans)
        for span in spans:
            span.cache.reserve(span.rows)
        if self.blocks and hidden.shape[0]:
            cos, sin = self._rotations(spans)
            for layer, block in enumerate(self.blocks):
                q, k, v = block.qkv(hidden, cos, sin)
                hidden = hidden + block.attention_output(_attend_spans(layer, block, q, k, v, spans))
                hidden = hidden.add_(block.mlp(hidden))
        for span in spans:
            span.cache.advance(span.rows)
        return hidden

    def _check(self, hidden: torch.Tensor, spans: Sequence[Span]) -> None:
        if self.slice.is_shard:
            raise ValueError("a shard's outputs are partial sums: call its blocks and add the shards up")
        if hidden.dim() != 2 or hidden.shape[1] != self.spec.hidden_size or hidden.dtype != self.dtype:
            wanted = f"{self.dtype} [rows, {self.spec.hidden_size}]"
            raise ValueError(f"hidden is {hidden.dtype} {list(hidden.shape)}; it must be {wanted}")
        rows = 0
        for span in spans:
            if span.rows < 0:
                raise ValueError(f"a span has {span.rows} rows")
            if not span.cache.can_append(span.rows):
                raise CacheFull(
                    f"{span.cache.length} + {span.rows} positions do not fit in {span.cache.capacity_limit}"
                )
            rows += span.rows
        if rows != hidden.shape[0]:
            raise ValueError(f"the spans have {rows} rows, hidden has {hidden.shape[0]}")
        if len(spans) > 1 and len({id(span.cache) for span in spans}) != len(spans):
            raise ValueError("two spans share a cache")

    def _rotations(self, spans: Sequence[Span]) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = [self.rope.span(span.cache.length, span.rows) for span in spans]
        if len(pairs) == 1:
            return pairs[0]
        return torch.cat([cos for cos, _ in pairs]), torch.cat([sin for _, sin in pairs])


def _attend_spans(
    layer: int, block: Block, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: Sequence[Span]
) -> torch.Tensor:
    """q, k, v of all rows -> context [rows, heads * head_dim]; k and v go to the spans' caches on the way."""
    if len(spans) == 1:
        cache = spans[0].cache
        keys, values = cache.append(layer, k, v)
        return attend(q, keys, values, cache.length, block.window)
    contexts = []
    first = 0
    for span in spans:
        if span.rows:
            last = first + span.rows
            keys, values = span.cache.append(layer, k[first:last], v[first:last])
            contexts.append(attend(q[first:last], keys, values, span.cache.length, block.window))
            first = last
    return torch.cat(contexts)


class Embedding:
    """Token ids to hidden states."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight  # [vocab, hidden]

    @classmethod
    def load(cls, checkpoint: Checkpoint, dtype: torch.dtype) -> Embedding:
        part = embedding_part(checkpoint.spec)
        checkpoint.check(part)
        weight = torch.empty(part.shape, dtype=dtype)
        checkpoint.read_into(part, weight)
        return cls(weight)

    @property
    def loaded_bytes(self) -> int:
        return self.weight.nbytes

    @torch.inference_mode()
    def forward(self, ids: Sequence[int] | torch.Tensor) -> torch.Tensor:
        """ids [rows] -> [rows, hidden]. Raises ValueError for an id outside the vocabulary."""
        wanted = torch.as_tensor(ids, dtype=torch.int64)
        if wanted.dim() != 1 or (wanted.numel() and not 0 <= int(wanted.min()) <= int(wanted.max()) < len(self.weight)):
            raise ValueError(f"token ids must be a list of numbers from 0 to {len(self.weight) - 1}")
        return functional.embedding(wanted, self.weight)


class Head:
    """The final norm and the matrix to the vocabulary."""

    def __init__(self, norm: RmsNorm, weight: torch.Tensor, shared: bool) -> None:
        self.norm = norm
        self.weight = weight  # [vocab, hidden]
        self._shared = shared

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, spec: ModelSpec, dtype: torch.dtype, embedding: Embedding | None = None
    ) -> Head:
        """With `embedding` of the same dtype, a head that is tied to it shares its storage instead of reading it."""
        norm_part, part = head_parts(spec)
        norm = RmsNorm(load_matrix(checkpoint, [norm_part], dtype), spec.norm_eps)
        if spec.tied_embeddings and embedding is not None and embedding.weight.dtype == dtype:
            return cls(norm, embedding.weight, shared=True)
        return cls(norm, load_matrix(checkpoint, [part], dtype), shared=False)

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the weights held by the head alone."""
        return self.norm.weight.nbytes + (0 if self._shared else self.weight.nbytes)

    @torch.inference_mode()
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [rows, hidden], as the last layer gives it -> logits, float32 [rows, vocab]."""
        return functional.linear(self.norm(hidden), self.weight).float()
