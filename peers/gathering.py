"""Tiles on their way from their owners to all members of a ring: from each to the next, or from each owner to all."""

from __future__ import annotations

from functools import partial

from peers.exchange import Exchange
from peers.frames import Kind
from peers.run import Run
from peers.tensor_bytes import Tiled
from peers.tiles import Ring, Tile


class TileGathering:
    """Of one tensor.

    Args:
        run: which has not begun.
        whole: where tiles are, and come to be.
        by_ring: whether they go from each member to the next.
    """

    def __init__(self, run: Run, ring: Ring, whole: Tiled, by_ring: bool) -> None:
        self._run, self._ring, self._whole, self._by_ring = run, ring, whole, by_ring
        for tile in whole.tiles:
            if tile.place != ring.place:
                rank = ring.before if by_ring else ring.ranks[tile.place]
                run.expect(rank, Kind.GATHER, tile, whole.bytes(tile), partial(self._came, tile))

    def spread(self, tile: Tile) -> None:
        """An own tile is there, and may go out."""
        others = self._ring.others
        for rank in [self._ring.behind] if self._by_ring and others else others:
            self._run.send(rank, Kind.GATHER, tile, self._whole.bytes(tile))
        self._run.exchange.there(tile)

    @property
    def own(self) -> list[Tile]:
        """The tiles of this member."""
        return [tile for tile in self._whole.tiles if tile.place == self._ring.place]

    def _came(self, tile: Tile) -> Tile:
        if self._by_ring and not self._ring.ends_at(tile):
            self._run.send(self._ring.behind, Kind.GATHER, tile, self._whole.bytes(tile))
        return tile


class OwnTiles:
    """A gather whose caller gives its own tiles one by one; made by ``Collectives``.

    for tile in own.tiles:
        whole[tile.begin : tile.end] = …
        own.give()
    own.exchange.wait()

    Attributes:
        tiles: of this member, in the order in which they are to be given.
        exchange: what to wait for; it is not done before all are given.
    """

    def __init__(self, run: Run, gathering: TileGathering) -> None:
        self.exchange: Exchange = run.exchange
        self.tiles = gathering.own
        self._gathering = gathering
        self._given = 0
        for _ in self.tiles:
            self.exchange.hold()

    def give(self) -> None:
        """The next tile is there, and is not touched any more; with none left nothing happens."""
        if self._given < len(self.tiles):
            self._given += 1
            self._gathering.spread(self.tiles[self._given - 1])
            self.exchange.release()
