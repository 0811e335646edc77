"""A sum over all members of a ring, share by share: each member ends up with the sum of its own share.

By ring, a share's sum begins at the member behind its owner, goes round, and ends at the owner; each adds its own part.
In one shot everyone sends its parts to their owners, who add them in that same order. So both give the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import torch

from peers.exchange import Exchange
from peers.frames import Kind
from peers.run import Run
from peers.tensor_bytes import Tiled, memory, sum_in_order
from peers.tiles import Ring, Tile


class Reduction:
    """Under way; made by ``Collectives``. A share goes off once it is given.

    for place in reduction.order:
        parts[rows of place] = …
        reduction.give(place)
    reduction.exchange.wait()       # now this member's own rows are the sum; the others are used up

    Args:
        run: which has not begun.
        parts: this member's parts of the sum.
        by_ring: whether sums go round.
        whole: called with each tile of the own share once its sum is there. None: it is there for the caller then.

    Attributes:
        order: whose shares are wanted first, by place.
        exchange: what to wait for.
    """

    def __init__(
        self, run: Run, ring: Ring, parts: Tiled, by_ring: bool, whole: Callable[[Tile], None] | None = None
    ) -> None:
        self.exchange: Exchange = run.exchange
        self.order = ring.given_order()
        self._run, self._ring, self._own, self._by_ring = run, ring, parts, by_ring
        self._whole = whole or run.exchange.there
        self._lock = threading.Lock()
        self._missing: dict[Tile, int] = {}
        """Parts of each tile that have not come, or are not given."""
        self._others: dict[Tile, list[torch.Tensor]] = {}
        for tile in parts.tiles:
            self._expect(tile)

    def give(self, place: int) -> None:
        """This member's part of the share of ``place`` is there, and is not touched any more; once for each share."""
        for tile in self._own.tiles:
            if tile.place == place:
                self._happened(tile)

    def _expect(self, tile: Tile) -> None:
        """Room for the parts that others send."""
        ring = self._ring
        senders: list[int] = []
        if not self._by_ring and tile.place == ring.place:
            senders = [ring.ranks[place] for place in ring.summed_order()[:-1]]
        elif self._by_ring and (tile.place + 1) % ring.size != ring.place:
            senders = [ring.before]
        numbers = self._own.rows(tile)
        others = [torch.empty_like(numbers) for _ in senders]
        self._missing[tile], self._others[tile] = len(senders) + 1, others
        self.exchange.hold()
        for rank, part in zip(senders, others, strict=True):
            self._run.expect(rank, Kind.REDUCE, tile, memory(part), partial(self._happened, tile))

    def _happened(self, tile: Tile) -> None:
        """One of its parts is there."""
        with self._lock:
            self._missing[tile] -= 1
            if self._missing[tile]:
                return
        others, own = self._others.pop(tile), self._own.rows(tile)
        if others:
            sum_in_order([*others, own], own)
        if tile.place == self._ring.place:
            self._whole(tile)
        else:
            to = self._ring.behind if self._by_ring else self._ring.ranks[tile.place]
            self._run.send(to, Kind.REDUCE, tile, self._own.bytes(tile))
        self.exchange.release()
