"""Layers run one by one over some texts, with somebody who sees what each head does and may change it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from split_model.cached_batch import CacheBatch
from split_model.positions import PositionTable
from split_model.residence import Blocks
from split_model.rope import Rope
from split_model.stack import Embedding, Head, Span, Stack


@dataclass(frozen=True)
class Attended:
    """What the rows of a layer's attention were: q [rows, heads, head_dim], k [rows, kv_heads, head_dim], both
    rotated; context [rows, heads, head_dim]. Texts one after the other. `cos`, `sin` [rows, 1, head_dim] are the
    rotations, None where positions are none."""

    q: torch.Tensor
    k: torch.Tensor
    context: torch.Tensor
    cos: torch.Tensor | None
    sin: torch.Tensor | None


See = Callable[[Attended], torch.Tensor]
"""What was attended to, to the contexts that the layer goes on with, [rows, heads, head_dim]."""


@dataclass(frozen=True)
class Layers:
    """A whole model in this process, in stacks one behind the other."""

    embedding: Embedding
    stacks: tuple[Stack, ...]
    head: Head

    @property
    def count(self) -> int:
        """Layers of all stacks."""
        return sum(len(stack.blocks) for stack in self.stacks)

    @torch.inference_mode()
    def run(self, layer: int, hidden: torch.Tensor, lengths: Sequence[int], see: See) -> torch.Tensor:
        """One layer, numbered from 0 in the model, over texts of these lengths; hidden and result [rows, hidden]."""
        stack, at = self._at(layer)
        alone = _alone(stack, at)
        spans = [Span(alone.new_cache(rows), rows) for rows in lengths]
        return alone.run(hidden, _WatchedBatch(spans, see))

    def _at(self, layer: int) -> tuple[Stack, int]:
        for stack in self.stacks:
            if layer < len(stack.blocks):
                return stack, layer
            layer -= len(stack.blocks)
        raise ValueError("the model has fewer layers")


def _alone(stack: Stack, layer: int) -> Stack:
    """One layer of a stack, sharing its weights."""
    part = copy.copy(stack)
    part.blocks, part.entry = Blocks([stack.blocks[layer]]), stack.entry if layer == 0 else None
    part.kept_kv_heads = (part.blocks[0].kv_heads,)
    return part


class _WatchedBatch(CacheBatch):
    def __init__(self, spans: Sequence[Span], see: See) -> None:
        super().__init__(spans)
        self._see = see
        self._rotations: tuple[torch.Tensor, ...] | None = None

    def look_up(self, table: PositionTable) -> tuple[torch.Tensor, ...]:
        found = super().look_up(table)
        if isinstance(table, Rope):
            self._rotations = found
        return found

    def attend(self, layer: int, window: int | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        context = super().attend(layer, window, q, k, v).view(q.shape)
        cos, sin = self._rotations or (None, None)
        return self._see(Attended(q, k, context, cos, sin)).flatten(1)


def text_starts(lengths: Sequence[int]) -> Iterator[int]:
    """The row where each text begins."""
    begin = 0
    for rows in lengths:
        yield begin
        begin += rows
