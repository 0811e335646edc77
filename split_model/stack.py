"""Consecutive layers over a ragged batch of sessions, and the two ends of the model.

The rows of all sessions go through the matrix products together; where keys and values lie, and so how attention
reads them, is the batch's own affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from split_model.batch import Batch, Combine, whole_sum
from split_model.blocks import Block
from split_model.cached_batch import CacheBatch
from split_model.checkpoint import Checkpoint
from split_model.cross import Memory, ReadSource
from split_model.device import put
from split_model.end_parts import embedding_parts, head_parts
from split_model.entry import RowEntry
from split_model.kv_cache import CacheFull, KVCache
from split_model.matrix import Matrix, read_table
from split_model.norm import Norm, load_norm
from split_model.offload.loader import Loader
from split_model.relative import RelativeBias
from split_model.residence import Blocks
from split_model.rope import Rope
from split_model.slices import Slice
from split_model.spec import ModelSpec
from split_model.tree import Branches


@dataclass(frozen=True)
class Span:
    """`rows` consecutive rows of a batch: the new positions of one session, from its cache's length on.

    `branching` says where they stand and what they see when they are not simply the next positions.
    """

    cache: KVCache
    rows: int
    branching: Branches | None = None

    @property
    def start(self) -> int:
        """The slot of the first row."""
        return self.cache.length


class Stack:
    """The layers of a slice. Not safe for concurrent calls with the same cache; with different caches it is."""

    def __init__(
        self,
        spec: ModelSpec,
        held: Slice,
        blocks: Blocks,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        entry: RowEntry | None = None,
        relative: RelativeBias | None = None,
    ) -> None:
        """entry: what is done to rows before the model's first layer, where that is held and there is such a thing.
        relative: what is added to scores by distance, where positions are relative."""
        self.spec = spec
        self.slice = held
        self.blocks = blocks
        self.dtype = dtype
        self.device = torch.device(device)
        self.entry, self.relative = entry, relative
        self.rope = Rope(spec.rope, dtype, self.device) if spec.positions == "rotary" else None
        self.kv_heads = spec.num_kv_heads if held.kv_groups is None else len(held.kv_groups)
        self.kept_kv_heads: tuple[int, ...] | None = None
        """Of each layer, where heads are pruned."""

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        held: Slice,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        apart: bool = False,
        resident: bool = True,
        loader: Loader | None = None,
    ) -> Stack:
        """Reads the layers of a slice, never more than its own bytes and one matrix.

        `apart`: for who wants queries, or keys and values, of some rows alone, see `Projection`. `resident`: whether
        the layers are read now, or each when it is wanted, see `Blocks`. `loader`: of halves of layers that do not
        stay in memory, see `Block`; it belongs to whoever opened it.
        Ignores `embedding` and `head`. Raises ValueError for a slice past the model, BadCheckpoint.
        """
        held.check(checkpoint.spec)

        def read(layer: int) -> Block:
            number = held.first_layer + layer
            return Block(checkpoint, number, dtype, held.kv_groups, held.columns, device, apart, loader=loader)

        layers = range(held.num_layers)
        blocks = Blocks([read(layer) if resident else None for layer in layers], read)
        entry = RowEntry.load(checkpoint, dtype, device) if held.is_first else None
        relative = RelativeBias.load(checkpoint, held.kv_groups, dtype, device) if held.num_layers else None
        return cls(checkpoint.spec, held, blocks, dtype, device, entry, relative)

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return self.blocks.loaded_bytes + sum(each.nbytes for each in (self.entry, self.relative) if each is not None)

    def new_cache(self, limit: int) -> KVCache:
        """An empty cache for one session of at most `limit` positions."""
        return KVCache(
            len(self.blocks), self.kept_kv_heads or self.kv_heads, self.spec.head_dim, self.dtype, limit, self.device
        )

    @torch.inference_mode()
    def source(self, read: torch.Tensor) -> ReadSource:
        """What the layers' cross-attention looks at: keys and values of an encoder's rows, read [rows, hidden]."""
        found = []
        for block in self.blocks:
            assert block.cross is not None
            with block.using("attention"):
                keys, values = block.cross.projection.key_value(read)
            found.append((keys.transpose(0, 1), values.transpose(0, 1)))
        return ReadSource(tuple(found))

    def forward(
        self,
        hidden: torch.Tensor,
        spans: Sequence[Span],
        combine: Combine = whole_sum,
        sources: Sequence[ReadSource] | None = None,
    ) -> torch.Tensor:
        """Runs the new rows of every span through the layers and appends them to its cache.

        sources: of each span, what `source` gave for the text that it attends to, where the model has two halves.
        hidden [rows, hidden], of the stack's dtype: the spans' rows one after the other. Returns [rows, hidden];
        with no layers, `hidden` itself. Raises, before any cache changes, CacheFull where a span does not
        fit, ValueError where the spans do not add up to the rows or share a cache, for a model whose rows see all of
        their sequence, and as `run` does.
        """
        if self.spec.attention == "bidirectional":
            raise ValueError("rows that see what comes behind them have no cache: run them as Sequences")
        _check_spans(spans)
        memory = None if sources is None else Memory(sources, [span.rows for span in spans])
        return self.run(hidden, CacheBatch(spans, self.relative), combine, memory)

    @torch.inference_mode()
    def run(
        self, hidden: torch.Tensor, batch: Batch, combine: Combine = whole_sum, memory: Memory | None = None
    ) -> torch.Tensor:
        """Runs the rows of a batch, hidden [rows, hidden] of the stack's dtype, through the layers.

        memory: what cross-attention looks at, where the model has it. A shard needs `combine`, called twice a layer, or
        three times with `memory`, in every member of its group, with the same rows in the same order.
        Returns [rows, hidden]; with no layers, `hidden` itself. Raises ValueError, before anything is stored, for rows
        that are not the batch's, a shard without `combine`, `memory` where there should be none or the other way
        round; and whatever `combine` does.
        """
        if self.slice.is_shard and combine is whole_sum:
            raise ValueError("a shard's outputs are partial sums: say how they are combined with the other members'")
        if self.blocks and (memory is None) is (self.spec.attention == "cross"):
            raise ValueError("rows attend to a memory where the model has cross-attention, and only there")
        if hidden.shape != (batch.rows, self.spec.hidden_size) or hidden.dtype != self.dtype:
            wanted = f"{self.dtype} [{batch.rows}, {self.spec.hidden_size}]"
            raise ValueError(f"hidden is {hidden.dtype} {list(hidden.shape)}; it must be {wanted}")
        if self.blocks and batch.rows:
            if self.entry is not None:
                hidden = self.entry(hidden, batch)
            cos, sin = batch.look_up(self.rope) if self.rope is not None else (None, None)
            for layer, block in enumerate(self.blocks):
                normed = block.input_norm(hidden)
                with block.using("attention"):
                    q, k, v = block.qkv(normed, cos, sin)
                    partial = block.attention_output(batch.attend(layer, block.window, q, k, v))
                    hidden = block.after_attention(hidden, combine(partial))
                    if block.cross is not None and memory is not None:
                        context = memory.attend(layer, block.cross.projection.query(block.cross.norm(hidden)))
                        hidden = hidden.add_(combine(block.cross.output(context)))
                normed = block.mlp_norm(hidden)
                with block.using("mlp"):
                    partial = block.mlp(normed)
                hidden = block.after_mlp(hidden, combine(partial))
        batch.advance()
        return hidden


def _check_spans(spans: Sequence[Span]) -> None:
    for span in spans:
        if span.rows < 0:
            raise ValueError(f"a span has {span.rows} rows")
        if not span.cache.can_append(span.rows):
            raise CacheFull(f"{span.cache.length} + {span.rows} positions do not fit in {span.cache.capacity_limit}")
        if span.branching is not None and (span.branching.length, span.branching.rows) != (
            span.cache.length + span.rows,
            span.rows,
        ):
            raise ValueError(f"{span.branching.rows} branching rows are not the next {span.rows} of this cache")
    if len({id(span.cache) for span in spans}) != len(spans):
        raise ValueError("two spans share a cache")


class Embedding:
    """Token ids to hidden states."""

    def __init__(self, weight: torch.Tensor, project: Matrix | None = None) -> None:
        """project: from the width of the table to that of the rows, where it is another."""
        self.weight = weight  # [vocab, hidden], or narrower
        self._project = project

    @classmethod
    def load(cls, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device | str = "cpu") -> Embedding:
        parts = embedding_parts(checkpoint.spec)
        assert parts.tokens is not None
        project = Matrix.load(checkpoint, [parts.project], [], dtype, device) if parts.project else None
        return cls(read_table(checkpoint, parts.tokens, dtype, device), project)

    @property
    def loaded_bytes(self) -> int:
        return self.weight.nbytes + (0 if self._project is None else self._project.nbytes)

    @torch.inference_mode()
    def forward(self, ids: Sequence[int] | torch.Tensor) -> torch.Tensor:
        """ids [rows] -> [rows, hidden]. Raises ValueError for an id outside the vocabulary.

        Ids that are on another device than the host were chosen from this vocabulary: to look would be to wait.
        """
        wanted = torch.as_tensor(ids, dtype=torch.int64)
        known = not wanted.is_cpu or not wanted.numel()
        if wanted.dim() != 1 or not (known or 0 <= int(wanted.min()) <= int(wanted.max()) < len(self.weight)):
            raise ValueError(f"token ids must be a list of numbers from 0 to {len(self.weight) - 1}")
        rows = functional.embedding(put(wanted, self.weight.device), self.weight)
        return rows if self._project is None else self._project(rows)


class Head:
    """The final norm and the matrix to the vocabulary."""

    def __init__(
        self, norm: Norm, matrix: Matrix, shared: bool, project: Matrix | None = None, scale: float = 1.0
    ) -> None:
        """project: from the width of the rows to that of the matrix, where it is another. scale: of the rows."""
        self.norm = norm
        self._matrix = matrix  # [vocab, hidden], or narrower
        self._shared = shared
        self._project, self._scale = project, scale

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        spec: ModelSpec,
        dtype: torch.dtype,
        embedding: Embedding | None = None,
        device: torch.device | str = "cpu",
    ) -> Head:
        """With `embedding` of the same dtype, a head that is tied to it shares its storage instead of reading it.

        A shared matrix stays as the embedding reads it, also where a packed copy would multiply faster.
        """
        parts, part = head_parts(spec), checkpoint.head_matrix()
        norm = load_norm(checkpoint, (parts.norm, parts.norm_bias), dtype, device)
        project = Matrix.load(checkpoint, [parts.project], [], dtype, device) if parts.project else None
        tied = spec.tied_embeddings and part == parts.matrix
        if tied and embedding is not None and embedding.weight.dtype == dtype:
            return cls(norm, Matrix(embedding.weight, pack=False), True, project, spec.head_scale)
        return cls(norm, Matrix.load(checkpoint, [part], [], dtype, device), False, project, spec.head_scale)

    @property
    def device(self) -> torch.device:
        """Where its weights are, and its logits come out."""
        return self._matrix.device

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the weights held by the head alone."""
        held = [self.norm.nbytes, 0 if self._shared else self._matrix.nbytes]
        return sum(held) + (0 if self._project is None else self._project.nbytes)

    @torch.inference_mode()
    def rows(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [rows, hidden], as the last layer gives it -> [rows, spec.final_size], as the model gives it."""
        rows = self.norm(hidden)
        return rows if self._project is None else self._project(rows)

    @torch.inference_mode()
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [rows, hidden], as the last layer gives it -> logits, float32 [rows, vocab]."""
        rows = self.rows(hidden)
        if self._scale != 1:
            rows = rows * self._scale
        return self._matrix(rows).float()
