"""One collective of one member: what it expects, what it sends, and the exchange that its caller waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from peers.exchange import Exchange
from peers.fabric import Fabric
from peers.frames import Kind, PeerFrame
from peers.inbox import Expected, Key
from peers.tiles import Tile


class Run:
    """First all that it expects is said, then it begins, then it sends.

    Args:
        epoch: the one that it is of.
        others: the ranks of the others who take part.
        label: under which its bytes are counted.

    Raises ``PeerLost``, as ``begin`` does, and ``EpochOver``.
    """

    def __init__(self, fabric: Fabric, epoch: int, others: Sequence[int], label: str) -> None:
        self.exchange: Exchange = fabric.exchange(epoch, others)
        self._fabric = fabric
        self._label = label
        self._expected: dict[int, dict[Key, Expected]] = {}

    def expect(self, rank: int, kind: Kind, tile: Tile, view: memoryview, then: Callable[[], Tile | None]) -> None:
        """Member ``rank`` is to send a tile into ``view``. ``then`` is called when it has, and may return the tile that
        is there for the caller."""

        def arrived() -> None:
            self._fabric.counts.add(self._label, kind, received=len(view))
            self.exchange.release(rank, then())

        self.exchange.hold(rank)
        self._expected.setdefault(rank, {})[kind, self.exchange.numbers[rank], tile.number] = Expected(view, arrived)

    def begin(self) -> None:
        """What it expects may come."""
        self._fabric.begin(self.exchange, self._expected)

    def send(self, rank: int, kind: Kind, tile: Tile, view: memoryview) -> None:
        """Send a tile, which stays as it is until the exchange is done."""
        self._fabric.counts.add(self._label, kind, sent=len(view))
        frame = PeerFrame(kind, self.exchange.epoch, self.exchange.numbers[rank], tile.number, len(view))
        self._fabric.link(rank).outgoing.send(frame, view, self.exchange)

    def begun(self, finish: Callable[[], None] | None = None) -> Exchange:
        """All that it sends by itself is sent. ``finish`` is called when everything has happened, before it is done."""
        self.exchange.begun(finish, self._fabric.forget)
        return self.exchange
