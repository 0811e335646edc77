"""A layer by rows (Voltage, Algorithm 2): each member has all of it and computes some rows, from every row's keys and
values.

What the members exchange is the rows behind the layer's first norm, of which each projects all keys and values (Eq. 3)
or, in one-shot work, none (Eq. 8); or the keys and values themselves. The residual never travels. Behind it every
member has all keys and values, so steps of few rows go on from them; what such steps store is not everywhere, and
``catch_up`` brings it there before rows are shared again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import torch

from device_agent.group.held import HeldLayer, PieceCaches
from device_agent.group.layout import Parted, overlap, parted
from device_agent.group.moves import Tag
from device_agent.group.reordered import attend_reordered
from device_agent.group.step_rows import StepRows
from device_agent.planning.plan import ByRows, Sharded
from peers.exchange import Exchange


def run_by_rows(held: HeldLayer, caches: PieceCaches, on: StepRows, own: torch.Tensor) -> torch.Tensor:
    """own ``[own rows, hidden]`` to the layer's output for them, as far as they are wanted.

    Raises ``PeerLost``, ``EpochOver``.
    """
    layer, block = held.layer, held.block
    assert isinstance(layer, ByRows)
    layout = parted(on.rows, layer.rows)
    mine = layout.ranges[on.place]
    needed = overlap(mine, on.wanted)
    cut = slice(needed.start - mine.start, needed.stop - mine.start)
    normed = block.input_norm(own)
    shared = _own_part(held, on, normed, mine)
    coming = _Coming(shared, layout, on, layer.prefix, held.label)
    queries = [each.qkv.query(normed[cut], *on.turned(needed)) for each in held.blocks]
    seen = range(mine.stop) if layer.prefix else range(on.rows)
    if layer.reorders(on.place) and not caches[held.own]:
        tiles = coming if layer.overlap else coming.together(seen)
        contexts = attend_reordered(held.blocks, on, queries, needed, shared, tiles)
    else:
        made = _keys_values(held, on, coming, seen)
        contexts = [
            on.look(each, on.store(of_piece, k, v), q, needed)
            for each, of_piece, (k, v), q in zip(held.blocks, caches, made, queries, strict=True)
        ]
    partial = [each.attention_output(context) for each, context in zip(held.blocks, contexts, strict=True)]
    hidden = block.after_attention(own[cut], _sum(partial))
    normed = block.mlp_norm(hidden)
    return block.after_mlp(hidden, _sum([each.mlp(normed) for each in held.blocks]))


def catch_up(held: HeldLayer, caches: PieceCaches, on: StepRows, common: int) -> None:
    """Give every member the keys and values that steps of few rows have stored at some: those of the step's one session
    from position ``common`` on, before the step's own, if there are any. Raises ``PeerLost``, ``EpochOver``."""
    layer = held.layer
    assert isinstance(layer, ByRows)
    groups = held.pieces[-1].groups.stop
    missing = on.start - common
    if missing <= 0:
        return
    if isinstance(layer.step, Sharded):
        shares, having = list(layer.step.groups), held.pieces[held.own].groups
    else:
        shares = [groups * (place == layer.step.member) for place in range(len(on.ranks))]
        having = range(shares[on.place])
    [own] = caches[held.own]
    keys, values = own.read(0)
    whole = torch.empty((groups, 2, missing, keys.shape[2]), dtype=keys.dtype)
    if having:
        whole[having.start : having.stop, 0] = keys[:, common:]
        whole[having.start : having.stop, 1] = values[:, common:]
    on.collectives.all_gather(whole, shares, label=held.label).wait()
    for piece, [cache] in zip(held.pieces, caches, strict=True):
        if cache.length < on.start:
            k, v = whole[piece.groups.start : piece.groups.stop].transpose(0, 2).unbind(1)
            cache.append(0, k, v)
            cache.advance(missing)


class _Coming:
    """What the members share, tile by tile as it comes: own rows are there at once."""

    def __init__(self, shared: torch.Tensor, layout: Parted, on: StepRows, prefix: bool, label: str) -> None:
        self.shared = shared
        self._mine = layout.ranges[on.place]
        self._all: Exchange | None = None
        self._exchanges: list[tuple[range, Exchange]] = []
        if not prefix:
            self._all = on.collectives.all_gather(shared, layout.counts, label=label)
            return
        last = len(on.ranks) - 1
        for place, rows in enumerate(layout.ranges):
            if place < on.place and rows and (self._mine or on.place == last):
                part = shared[rows.start : rows.stop]
                self._exchanges.append((rows, on.collectives.receive(part, on.ranks[place], Tag.PREFIX, label=label)))
            elif place > on.place and self._mine and (rows or place == last):
                part = shared[self._mine.start : self._mine.stop]
                on.collectives.send(part, on.ranks[place], Tag.PREFIX, label=label)

    def __iter__(self) -> Iterator[range]:
        if self._all is not None:
            for tile in self._all:
                yield range(tile.begin, tile.end)
            return
        if self._mine:
            yield self._mine
        for rows, exchange in self._exchanges:
            exchange.wait()
            yield rows

    def together(self, seen: range) -> list[range]:
        """The first rows as one tile, once all have come."""
        for _ in self:
            pass
        return [seen]


def _own_part(held: HeldLayer, on: StepRows, normed: torch.Tensor, mine: range) -> torch.Tensor:
    """Room for what all members share, filled with this one's."""
    layer = held.layer
    assert isinstance(layer, ByRows)
    if not layer.keys_values:
        shared = on.empty(normed.shape[1], like=normed)
        shared[mine.start : mine.stop] = normed
        return shared
    shared = on.empty(2, held.pieces[-1].groups.stop, held.block.head_dim, like=normed)
    for piece, block in zip(held.pieces, held.blocks, strict=True):
        for number, part in enumerate(block.qkv.key_value(normed, *on.turned(mine))):
            shared[mine.start : mine.stop, number, piece.groups.start : piece.groups.stop] = part
    return shared


def _keys_values(
    held: HeldLayer, on: StepRows, coming: _Coming, seen: range
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of each piece the keys and values ``[seen, kv_heads, head_dim]``."""
    layer, shared = held.layer, coming.shared
    assert isinstance(layer, ByRows)
    if layer.keys_values:
        coming.together(seen)
        parts = [shared[: seen.stop, :, each.groups.start : each.groups.stop] for each in held.pieces]
        return [(part[:, 0], part[:, 1]) for part in parts]
    made = [
        (
            on.empty(each.kv_heads, each.head_dim, like=shared)[: seen.stop],
            on.empty(each.kv_heads, each.head_dim, like=shared)[: seen.stop],
        )
        for each in held.blocks
    ]

    def project(rows: range) -> None:
        for each, both in zip(held.blocks, made, strict=True):
            for into, part in zip(
                both, each.qkv.key_value(shared[rows.start : rows.stop], *on.turned(rows)), strict=True
            ):
                into[rows.start : rows.stop] = part

    for rows in coming if layer.overlap else coming.together(seen):
        project(rows)
    return made


def _sum(parts: list[torch.Tensor]) -> torch.Tensor:
    return reduce(torch.Tensor.add_, parts)
