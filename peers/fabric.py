"""All links of one member: who is there, in which epoch, and what ends them all.

    with Fabric.open(board, rank, size, address) as fabric:
        collectives = Collectives(fabric)

A fabric lives until a member is gone: then every wait of this process ends, and says who. It can be planned anew while
it lives: an *epoch* begins, in which nothing of the one before counts any more, and the links stay.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Final

from peers.board import Board, PeerLost
from peers.counts import Counts
from peers.exchange import Exchange
from peers.frames import MOST_EPOCH, NUMBERS, Kind, PeerFrame
from peers.greeting import PeerDoor
from peers.inbox import Expected, Key
from peers.incoming import LOOK_EVERY_S
from peers.link import PeerLink
from peers.opening import OPEN_WITHIN_S, open_links
from peers.reader import SILENT_S
from wire.errors import ConnectionFailed

PULSE_EVERY_S: Final = 2.0
"""Who has sent nothing else for so long says that it lives."""

TURN_WITHIN_S: Final = 15.0
"""Time from the moment the first member begins an epoch until all have."""

LEAVE_WITHIN_S: Final = 5.0
"""What was sent has so long to leave before the links end."""


class EpochOver(RuntimeError):
    """The group has begun another epoch: what was under way will never be done."""


class Fabric:
    """Safe on any thread. Made by ``open``; a context manager, whose end is ``close``.

    Attributes:
        rank, size: this member's, and how many there are.
        counts: bytes that went out and came in.
    """

    def __init__(self, board: Board, door: PeerDoor) -> None:
        self.rank, self.size = door.rank, door.size
        self.counts = Counts()
        self._board = board
        self._links: dict[int, PeerLink] = {}
        self._changed = threading.Condition()
        """Guards everything below."""
        self._epoch = door.epoch
        self._turned: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        self._left: set[int] = set()
        self._leaving = False
        self._failure: PeerLost | None = None
        self._live: set[Exchange] = set()
        self._over = threading.Event()

    @classmethod
    def open(
        cls,
        board: Board,
        rank: int,
        size: int,
        address: str,
        *,
        epoch: int = 0,
        within_s: float = OPEN_WITHIN_S,
        silent_s: float = SILENT_S,
        congestion: str = "",
    ) -> Fabric:
        """Links to all other members, each of which must call this within ``within_s``.

        Args:
            board: of the group; its key is what members prove to know.
            address: of this machine, as the others reach it.
            epoch: the first; in all members the same.
            silent_s, congestion: see ``PeerLink``.

        Raises:
            PeerLost: a member is gone, has not come in time, or is not who it should be.
            OSError: the address is not this machine's.
            ValueError: the board has no key, or the epoch or rank is out of range.
        """
        if not board.key or not 0 <= epoch <= MOST_EPOCH or not 0 <= rank < size:
            raise ValueError(f"no links for member {rank} of {size} in epoch {epoch}, or without a key")
        door = PeerDoor(board.key, epoch, rank, size)
        fabric = cls(board, door)
        connections = open_links(board, door, address, within_s)
        try:
            for other, connection in connections.items():
                fabric._links[other] = _link(other, connection, epoch, fabric, silent_s, congestion)
                fabric._turned[other], fabric._begun[other] = epoch, 0
            for link in fabric._links.values():
                link.start()
            threading.Thread(target=fabric._look_after, name="links", daemon=True).start()
        except BaseException:
            fabric._abandon(connections)
            raise
        return fabric

    def _abandon(self, connections: Mapping[int, socket.socket]) -> None:
        """It never was: its links end, those that were never made too."""
        self._leaving = True
        for rank, connection in connections.items():
            if rank in self._links:
                self._links[rank].abandon()
            else:
                connection.close()

    def __enter__(self) -> Fabric:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def epoch(self) -> int:
        """The one now."""
        return self._epoch

    @property
    def dropped(self) -> int:
        """Frames of other epochs that came, and were dropped."""
        return sum(link.incoming.dropped for link in self._links.values())

    @property
    def failure(self) -> PeerLost | None:
        """Why it has ended, None while it lives."""
        return self._failure

    def exchange(self, epoch: int, ranks: Sequence[int] = ()) -> Exchange:
        """A new one of ``epoch``, and for a collective with others its number on each of their links: any two members
        begin those that both take part in in the same order.

        Raises ``PeerLost``, and ``EpochOver`` where that is not the epoch now.
        """
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if epoch != self._epoch:
                raise EpochOver(f"epoch {self._epoch} has begun")
            numbers = {rank: self._begun[rank] for rank in ranks}
            for rank in ranks:
                self._begun[rank] = (self._begun[rank] + 1) % NUMBERS
            exchange = Exchange(self._epoch, numbers, self._read, self.lose)
            self._live.add(exchange)
        return exchange

    def forget(self, exchange: Exchange) -> None:
        """It is over."""
        with self._changed:
            self._live.discard(exchange)

    def begin(self, exchange: Exchange, expected: Mapping[int, Mapping[Key, Expected]]) -> None:
        """A collective begins: what each member is to send for it, by rank. Raises ``PeerLost``."""
        for rank, number in exchange.numbers.items():
            try:
                self._links[rank].incoming.begin(exchange.epoch, number, expected.get(rank, {}))
            except ConnectionFailed as error:
                self.lose(f"member {rank} is gone: {error.message}", rank)
        self._check()

    def ask(self, exchange: Exchange, link: PeerLink, tag: int, expected: Expected) -> None:
        """Expect the next frame that a member sends under a tag. Raises ``PeerLost``."""
        try:
            link.incoming.ask(exchange.epoch, tag, expected)
        except ConnectionFailed as error:
            self.lose(f"member {link.rank} is gone: {error.message}", link.rank)
        self._check()

    def link(self, rank: int) -> PeerLink:
        """The link to another member. Raises ``ValueError`` where there is none."""
        if rank not in self._links:
            raise ValueError(f"member {self.rank} of {self.size} has no link to {rank}")
        return self._links[rank]

    def turn(self, epoch: int, within_s: float = TURN_WITHIN_S) -> None:
        """Begin another epoch, as all members must; returns once all have.

        Whatever was under way fails with ``EpochOver``, at once and on whatever thread waits for it; until this
        returns, late tiles may still be written into its tensors. Later ones are dropped and counted.

        Raises:
            PeerLost: a member is gone, or has not begun it in time.
            ValueError: the epoch is not after the one now.
        """
        with self._changed:
            if not self._epoch < epoch <= MOST_EPOCH:
                raise ValueError(f"epoch {epoch} does not follow {self._epoch}")
            self._epoch, self._begun = epoch, dict.fromkeys(self._links, 0)
            ended, self._live = self._live, set()
            for link in self._links.values():
                link.turn(epoch)
        for exchange in ended:
            exchange.fail(EpochOver(f"epoch {epoch} has begun"))
        deadline = monotonic() + within_s
        for link in self._links.values():
            link.outgoing.send(PeerFrame(Kind.TURN, epoch))
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure or self._left or not self._behind(epoch), deadline - monotonic()
            )
            behind = self._behind(epoch)
        if behind and self._failure is None:
            self.lose(f"member {behind[0]} has not begun epoch {epoch} within {within_s:g} s", behind[0])
        if self._failure is not None:
            raise self._failure

    def lose(self, why: str, rank: int | None = None) -> None:
        """End everything here, and tell the others who is gone. On any thread; only the first call counts."""
        with self._changed:
            if self._failure is not None:
                return
            self._failure = PeerLost(why, rank)
            ended, self._live = self._live, set()
            self._changed.notify_all()
        for link in self._links.values():
            if rank is not None and rank not in (link.rank, self.rank):
                link.outgoing.send(PeerFrame(Kind.LOST, self._epoch, tag=rank))
        for exchange in ended:
            exchange.fail(self._failure)
        for link in self._links.values():
            link.close()
        self._over.set()

    def close(self) -> None:
        """Leave: what was sent still goes out, what is under way here fails. Twice does no harm."""
        deadline = monotonic() + LEAVE_WITHIN_S
        self._leaving = True
        if self._failure is None:
            for link in self._links.values():
                link.leave()
            for link in self._links.values():
                link.await_end(deadline)
        self.lose("this member has left")
        for link in self._links.values():
            link.join(max(0.1, deadline - monotonic()))

    def heard(self, rank: int, frame: PeerFrame) -> None:
        """See ``Owner``."""
        if frame.kind is Kind.LOST:
            self.lose(f"member {frame.tag} is gone, says member {rank}", frame.tag)
        with self._changed:
            if frame.kind is Kind.TURN:
                self._turned[rank] = max(self._turned[rank], frame.epoch)
            elif frame.kind is Kind.LEAVE:
                self._left.add(rank)
            self._changed.notify_all()
        if frame.kind is Kind.LEAVE and self._links[rank].incoming.waiting:
            self.lose(f"member {rank} has left", rank)

    def ended(self, rank: int, why: str) -> None:
        """See ``Owner``."""
        if self._leaving or rank in self._left:
            self._links[rank].close()
        else:
            self.lose(f"member {rank} is gone: {why}", rank)

    def _check(self) -> None:
        """Who has left will never send what is expected. Raises ``PeerLost``."""
        for rank in tuple(self._left):
            if self._links[rank].incoming.waiting:
                self.lose(f"member {rank} has left", rank)
        if self._failure is not None:
            raise self._failure

    def _behind(self, epoch: int) -> list[int]:
        return [rank for rank, turned in self._turned.items() if turned < epoch]

    def _read(self, rank: int, enough: Callable[[], bool]) -> bool:
        return self._links[rank].incoming.read_until(enough)

    def _look_after(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            if self._board.lost is not None:
                self.lose(self._board.lost)
            for rank, link in self._links.items():
                link.incoming.leave_to_thread()
                if rank not in self._left:
                    link.pulse(self._epoch, PULSE_EVERY_S)


def _link(
    rank: int, connection: socket.socket, epoch: int, fabric: Fabric, silent_s: float, congestion: str
) -> PeerLink:
    """Raises ``PeerLost`` where that member is gone already."""
    try:
        return PeerLink(rank, connection, epoch, fabric, silent_s, congestion)
    except OSError as error:
        raise PeerLost(f"no link to member {rank}: {error}", rank) from error
