"""What the members of a ring do together with tensors, and what one sends to another.

    collectives = Collectives(fabric)
    for tile in collectives.all_gather(whole, shares):     # begun at once, goes on by itself
        use(whole[tile.begin : tile.end])

All members of a ring call the same collectives, with the same shapes, in the same order; a member's part may be empty.
Several rings may share a fabric, as long as any two members have the collectives of both in one order.
What is much goes round the ring in tiles; what is little goes from everyone to everyone at once, in one shot. So do a
reduce-scatter's parts, however much they are: no fewer bytes leave by ring. Sums are added in an order that does not
depend on who comes first, so all members have the same bits. Tensors are on the CPU and contiguous; they are sent from
where they lie and filled where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import torch

from peers.exchange import Exchange
from peers.fabric import Fabric
from peers.frames import Kind
from peers.gathering import OwnTiles, TileGathering
from peers.inbox import Expected, check_tag
from peers.reduction import Reduction
from peers.run import Run
from peers.tensor_bytes import Tiled, check_summed, memory, sum_in_order
from peers.tiles import Ring, Tile, evenly

ONE_SHOT_BYTES: Final = 32 * 1024
"""A tensor of all members together that is no longer is little: some rows of a decode step. A group that has measured
its links knows better."""


class Collectives:
    """Of one member.

    Of one epoch too, that in which they were made: who still goes by an old plan cannot disturb the next.

    Every method raises ``PeerLost`` where a member is gone, ``EpochOver`` where another epoch has begun, and
    ``ValueError`` for tensors or shares that cannot be; what they return goes on by itself.

    Args:
        fabric: the links.
        ring: ranks of those who take part, in the order in which tiles go round; None: all. Shares are by their place
            in it. Who is not in it may still ``send`` and ``receive``.
        one_shot_bytes: what is little.
    """

    def __init__(self, fabric: Fabric, ring: Sequence[int] | None = None, one_shot_bytes: int = ONE_SHOT_BYTES) -> None:
        ranks = tuple(range(fabric.size) if ring is None else ring)
        if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(fabric.size)):
            raise ValueError(f"no ring of {ranks} among {fabric.size} members")
        self._ring = Ring(ranks, ranks.index(fabric.rank) if fabric.rank in ranks else -1)
        self._fabric, self._epoch = fabric, fabric.epoch
        self._one_shot_bytes = one_shot_bytes

    @property
    def epoch(self) -> int:
        """That in which they were made."""
        return self._epoch

    def all_gather(self, whole: torch.Tensor, shares: Sequence[int], *, pieces: int = 1, label: str = "") -> Exchange:
        """Fill ``whole`` ``[rows, …]``, of which this member has its own rows: ``shares`` says how many each has.

        Args:
            pieces: tiles of each share, where it is much.
            label: under which its bytes are counted.
        """
        gathering = self.all_gather_given(whole, shares, pieces=pieces, label=label)
        for _ in gathering.tiles:
            gathering.give()
        return gathering.exchange

    def all_gather_given(
        self, whole: torch.Tensor, shares: Sequence[int], *, pieces: int = 1, label: str = ""
    ) -> OwnTiles:
        """As ``all_gather``, of rows that this member does not have yet: others' come, its own go out as it gives them.

        What is little goes in one piece.
        """
        tiled, by_ring = self._cut(whole, shares, pieces)
        run = Run(self._fabric, self._epoch, self._ring.others, label)
        gathering = TileGathering(run, self._ring, tiled, by_ring)
        own = OwnTiles(run, gathering)
        run.begin()
        run.begun()
        return own

    def broadcast(self, tensor: torch.Tensor, place: int, *, pieces: int = 8, label: str = "") -> Exchange:
        """Give all the tensor ``[rows, …]`` that the member at ``place`` has."""
        shares = [0] * self._ring.size
        shares[place] = tensor.shape[0]
        return self.all_gather(tensor, shares, pieces=pieces, label=label)

    def gather(self, whole: torch.Tensor, shares: Sequence[int], place: int, *, label: str = "") -> Exchange:
        """As ``all_gather``, for the member at ``place`` alone; of the others' ``whole`` only their own rows count."""
        tiled, _ = self._cut(whole, shares, 1)
        run = Run(self._fabric, self._epoch, self._ring.others, label)
        for tile in tiled.tiles:
            if tile.place != place == self._ring.place:
                rank = self._ring.ranks[tile.place]
                run.expect(rank, Kind.GATHER, tile, tiled.bytes(tile), partial(Tile, *tile))
        run.begin()
        for tile in tiled.tiles:
            if tile.place == self._ring.place != place:
                run.send(self._ring.ranks[place], Kind.GATHER, tile, tiled.bytes(tile))
        return run.begun()

    def reduce_scatter(
        self, parts: torch.Tensor, shares: Sequence[int], *, pieces: int = 1, given: bool = True, label: str = ""
    ) -> Reduction:
        """Make this member's rows of ``parts`` ``[rows, …]`` the sum of all members'; its other rows are used up.

        Args:
            given: all of ``parts`` is there; else share by share, as the caller gives it.
        """
        check_summed(parts)
        tiled, _ = self._cut(parts, shares, pieces)
        run = Run(self._fabric, self._epoch, self._ring.others, label)
        reduction = Reduction(run, self._ring, tiled, by_ring=False)
        run.begin()
        if given:
            for place in reduction.order:
                reduction.give(place)
        run.begun()
        return reduction

    def all_reduce(self, tensor: torch.Tensor, *, label: str = "") -> Exchange:
        """Make ``tensor`` the sum of all members', in place."""
        check_summed(tensor)
        if self._ring.place < 0:
            raise ValueError(f"member {self._fabric.rank} is not in the ring of {self._ring.ranks}")
        if tensor.nbytes <= self._one_shot_bytes:
            return self._all_reduce_at_once(tensor, label)
        flat = tensor.view(-1)
        tiled, by_ring = self._cut(flat, evenly(len(flat), self._ring.size), 1)
        run = Run(self._fabric, self._epoch, self._ring.others, label)
        gathering = TileGathering(run, self._ring, tiled, by_ring)
        reduction = Reduction(run, self._ring, tiled, by_ring, gathering.spread)
        run.begin()
        for place in reduction.order:
            reduction.give(place)
        return run.begun()

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of all members' tensors, in place, once it is there: what stacks of shards combine with."""
        self.all_reduce(tensor).wait()
        return tensor

    def send(self, tensor: torch.Tensor, rank: int, tag: int, *, label: str = "") -> Exchange:
        """Send a tensor to one member, behind all that was sent under this tag; one thread at a time for each tag."""
        view, link = memory(tensor), self._fabric.link(rank)
        check_tag(tag)
        exchange = self._fabric.exchange(self._epoch)
        self._fabric.counts.add(label, Kind.SEND, sent=len(view))
        link.send_tagged(exchange.epoch, tag, view, exchange)
        exchange.begun(None, self._fabric.forget)
        return exchange

    def receive(self, tensor: torch.Tensor, rank: int, tag: int, *, label: str = "") -> Exchange:
        """Fill a tensor with the next that a member sends under a tag, of this shape and dtype."""
        view, link = memory(tensor), self._fabric.link(rank)
        check_tag(tag)
        exchange = self._fabric.exchange(self._epoch)
        exchange.hold(rank)

        def arrived() -> None:
            self._fabric.counts.add(label, Kind.SEND, received=len(view))
            exchange.release(rank)

        self._fabric.ask(exchange, link, tag, Expected(view, arrived))
        exchange.begun(None, self._fabric.forget)
        return exchange

    def keep_ahead(self, rank: int, most: int) -> None:
        """What a member sends unasked is kept, so many bytes more of it, while anything else of it is waited for.

        For tags that several threads of a member send and receive under, in no order that both ends know: without it a
        long tensor that nobody has asked for yet holds up those behind it on the link.
        """
        self._fabric.link(rank).incoming.keep_ahead(self._epoch, most)

    def _all_reduce_at_once(self, tensor: torch.Tensor, label: str) -> Exchange:
        view, tile, others = memory(tensor), Tile(0, 0, 0, 1), self._ring.others
        parts = [torch.empty_like(tensor) for _ in others]
        run = Run(self._fabric, self._epoch, self._ring.others, label)
        for rank, part in zip(others, parts, strict=True):
            run.expect(rank, Kind.REDUCE, tile, memory(part), _nothing)
        run.begin()
        for rank in others:
            run.send(rank, Kind.REDUCE, tile, view)
        parts.insert(self._ring.place, tensor)
        return run.begun(partial(sum_in_order, parts, tensor) if others else None)

    def _cut(self, tensor: torch.Tensor, shares: Sequence[int], pieces: int) -> tuple[Tiled, bool]:
        """The tensor in tiles, and whether they go by ring."""
        if self._ring.place < 0 or len(shares) != self._ring.size:
            raise ValueError(f"no {len(shares)} shares for member {self._fabric.rank} in a ring of {self._ring.ranks}")
        little = tensor.nbytes <= self._one_shot_bytes
        return Tiled.cut(tensor, shares, 1 if little else pieces), not little


def _nothing() -> None:
    pass
