"""The rows of one step at one member: where they stand, what they see, and whom they are exchanged with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from device_agent.group.holding.held import Stored
from device_agent.group.holding.sights import PieceBias, sight_of_all, sight_of_new
from device_agent.group.rows.layout import overlap
from device_agent.planning.shares import spans
from peers.collectives import Collectives
from split_model.attention import Sight, attend_in
from split_model.blocks import Block
from split_model.kv_cache import KVCache
from split_model.rope import Rope

Turned = tuple[torch.Tensor | None, torch.Tensor | None]
"""Cosines and sines for some rows; two Nones for a model without rotations."""


class Heads(Protocol):
    """Heads that look at keys and values; a ``Block`` is that too."""

    @property
    def heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def window(self) -> int | None: ...


@dataclass(frozen=True)
class GroupStretch:
    """Rows of a step that belong together: new positions of one session, or one whole text.

    Attributes:
        start: the position of the first.
        rows: where they are in the step.
    """

    start: int
    rows: range

    @classmethod
    def whole_texts(cls, lengths: Sequence[int]) -> tuple[GroupStretch, ...]:
        """One behind the other."""
        return tuple(cls(0, rows) for rows in spans(lengths))

    def part(self, rows: range) -> GroupStretch | None:
        """What of it is among some rows of the step, numbered from the first of these; None: nothing."""
        found = overlap(self.rows, rows)
        if not found:
            return None
        start = self.start + found.start - self.rows.start
        return GroupStretch(start, range(found.start - rows.start, found.stop - rows.start))


@dataclass
class StepRows:
    """All rows of one step.

    Attributes:
        collectives: of the members that compute.
        ranks: of the members, by place.
        place: this member's.
        stretches: one behind the other.
        rope: the model's rotations, if it has any.
        all_see_all: whether rows also see what comes behind them; then texts are whole.
        rows: how many there are.
        wanted: of them, those whose output the portal wants, if the layer now is the last one; else all.
        sources: of each of the member's pieces of the layer now, what the stretches' sessions are about.
    """

    collectives: Collectives
    ranks: tuple[int, ...]
    place: int
    stretches: tuple[GroupStretch, ...]
    rope: Rope | None
    all_see_all: bool = False
    rows: int = field(init=False)
    wanted: range = field(init=False)
    sources: list[Stored] = field(default_factory=list, init=False)
    _stored: list[tuple[KVCache, int]] = field(default_factory=list, init=False)
    _turned: dict[tuple[int, int], Turned] = field(default_factory=dict, init=False)
    _sights: dict[tuple[int, int, int, int | None, range | None], Sight] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.rows = self.stretches[-1].rows.stop
        self.wanted = range(self.rows)

    @property
    def start(self) -> int:
        """The position of the first row."""
        return self.stretches[0].start

    def turned(self, rows: range) -> Turned:
        """How queries and keys of some of the rows are turned."""
        if self.rope is None:
            return None, None
        if len(self.stretches) == 1:
            return self.rope.span(self.start + rows.start, len(rows))
        asked = rows.start, rows.stop
        if asked not in self._turned:
            inside = [(each, overlap(each.rows, rows)) for each in self.stretches]
            found = [
                self.rope.span(each.start + part.start - each.rows.start, len(part)) for each, part in inside if part
            ]
            cos, sin = zip(*(found or [self.rope.span(0, 0)]), strict=True)
            self._turned[asked] = torch.cat(cos), torch.cat(sin)
        return self._turned[asked]

    def empty(self, *shape: int, like: torch.Tensor) -> torch.Tensor:
        """Room for something of all rows, in one piece of memory."""
        return torch.empty((self.rows, *shape), dtype=like.dtype, device=like.device)

    def attend(
        self,
        block: Block,
        caches: Sequence[KVCache],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bias: PieceBias | None = None,
    ) -> torch.Tensor:
        """Store the keys and values of all rows and attend from each.

        Args:
            caches: of each stretch; none where nothing is kept.
            q: ``[rows, heads, head_dim]``.
            k, v: ``[rows, kv_heads, head_dim]``.
            bias: what is added to the scores of the block's heads.

        Returns:
            the context, ``[rows, heads * head_dim]``.
        """
        return self.look(block, self.store(caches, k, v), q, range(self.rows), bias)

    def store(self, caches: Sequence[KVCache], k: torch.Tensor, v: torch.Tensor) -> Stored:
        """Of each stretch the keys and values of its positions so far, those of the step's first rows ``[new, kv_heads,
        head_dim]`` behind the others; these count once the step is done."""
        found: Stored = []
        for number, stretch in enumerate(self.stretches):
            new = overlap(stretch.rows, range(len(k)))
            keys, values = k[new.start : new.stop], v[new.start : new.stop]
            if caches:
                self._stored.append((caches[number], len(new)))
                found.append(caches[number].append(0, keys, values))
            else:
                found.append((keys.transpose(0, 1), values.transpose(0, 1)))
        return found

    def advance(self) -> None:
        """What was stored so far counts: the step is done, or one layer of a micro-batch that another follows."""
        for cache, rows in self._stored:
            cache.advance(rows)
        self._stored.clear()

    def look(
        self, block: Heads, stored: Stored, q: torch.Tensor, rows: range, bias: PieceBias | None = None
    ) -> torch.Tensor:
        """The context ``[len(rows), heads * head_dim]`` of some rows, whose queries are ``q``, in what is stored, up to
        the last position that one of these rows sees at least."""
        if not rows or not block.heads:
            return q.new_zeros((len(rows), block.heads * block.head_dim))
        found = []
        for stretch, (keys, values) in zip(self.stretches, stored, strict=True):
            asked = overlap(stretch.rows, rows)
            if asked:
                seen = self._sight(stretch, asked, block.window, q, bias)
                keys, values = (each.narrow(1, seen.first, seen.length) for each in (keys, values))
                found.append(attend_in(seen, q[asked.start - rows.start : asked.stop - rows.start], keys, values))
        return found[0] if len(found) == 1 else torch.cat(found)

    def _sight(
        self, stretch: GroupStretch, rows: range, window: int | None, like: torch.Tensor, bias: PieceBias | None
    ) -> Sight:
        """What some rows of a stretch see of it."""
        first = stretch.start + rows.start - stretch.rows.start
        asked = stretch.rows.start, first, len(rows), window, None if bias is None else bias.groups
        if asked not in self._sights:
            self._sights[asked] = (
                sight_of_all(first, len(rows), len(stretch.rows), bias)
                if self.all_see_all
                else sight_of_new(first, len(rows), window, like, bias)
            )
        return self._sights[asked]
