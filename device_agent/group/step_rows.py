"""The rows of one step at one member: where they stand, what they see, and whom they are exchanged with."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from peers.collectives import Collectives
from split_model.attention import Sight, attend_in, sight
from split_model.blocks import Block
from split_model.kv_cache import KVCache
from split_model.rope import Rope

Turned = tuple[torch.Tensor | None, torch.Tensor | None]
"""Cosines and sines for some rows; two Nones for a model without rotations."""


@dataclass
class StepRows:
    """New positions of one session.

    Attributes:
        collectives: of the members that compute.
        ranks: of the members, by place.
        place: this member's.
        start: the position of the first row.
        rows: how many there are.
        wanted: of them, those whose output the portal wants, if the layer now is the last one; else all.
        rope: the model's rotations, if it has any.
    """

    collectives: Collectives
    ranks: tuple[int, ...]
    place: int
    start: int
    rows: int
    rope: Rope | None
    wanted: range = field(init=False)
    _stored: list[tuple[KVCache, int]] = field(default_factory=list, init=False)
    _sights: dict[tuple[int, int, int | None], Sight] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.wanted = range(self.rows)

    def turned(self, rows: range) -> Turned:
        """How queries and keys of some of the rows are turned."""
        return (None, None) if self.rope is None else self.rope.span(self.start + rows.start, len(rows))

    def empty(self, *shape: int, like: torch.Tensor) -> torch.Tensor:
        """Room for something of all rows, in one piece of memory."""
        return torch.empty((self.rows, *shape), dtype=like.dtype)

    def attend(self, block: Block, cache: KVCache, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store the keys and values of all rows and attend from each.

        Args:
            q: ``[rows, heads, head_dim]``.
            k, v: ``[rows, kv_heads, head_dim]``.

        Returns:
            the context, ``[rows, heads * head_dim]``.
        """
        keys, values = self.store(cache, k, v)
        return self.look(block, keys, values, q, range(self.rows))

    def store(self, cache: KVCache, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the session's positions so far, those of new rows ``[new, kv_heads, head_dim]`` behind
        the others; these count once the step is done."""
        self._stored.append((cache, len(k)))
        return cache.append(0, k, v)

    def advance(self) -> None:
        """The step is done: what was stored counts."""
        for cache, rows in self._stored:
            cache.advance(rows)

    def look(
        self, block: Block, keys: torch.Tensor, values: torch.Tensor, q: torch.Tensor, rows: range
    ) -> torch.Tensor:
        """The context ``[len(rows), heads * head_dim]`` of some rows, whose queries are ``q``, in what is stored:
        ``keys`` and ``values`` ``[kv_heads, positions, head_dim]``, up to the last of these rows at least."""
        if not rows or not block.heads:
            return q.new_zeros((len(rows), block.heads * block.head_dim))
        asked = rows.start, rows.stop, block.window
        seen = self._sights.get(asked)
        if seen is None:
            seen = sight(self.start + rows.start, len(rows), block.window, q.dtype, q.device)
            self._sights[asked] = seen
        return attend_in(seen, q, keys.narrow(1, seen.first, seen.length), values.narrow(1, seen.first, seen.length))
