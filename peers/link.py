"""The link to one other member: frames out, frames in, and signs of life, over one socket and on two threads."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final, Protocol

from peers.board import PeerLost
from peers.frames import NUMBERS, Kind, PeerFrame
from peers.incoming import Incoming
from peers.outgoing import Sending, SendQueue

TICK_S: Final = 0.1
"""A thread that waits for the socket looks this often at how long it has waited."""


class Owner(Protocol):
    """Who is told what a link finds out; on its threads."""

    def heard(self, rank: int, frame: PeerFrame) -> None:
        """A frame without payload came."""

    def ended(self, rank: int, why: str) -> None:
        """The link is over, and not by ``close``."""


class PeerLink:
    """Safe on any thread, once it was started.

    Args:
        rank: the other member's.
        connection: a socket on which both have proved who they are.
        epoch: the group's first.
        owner: who is told.
        silent_s: a member from which nothing has come for so long is lost.
        congestion: how TCP finds out how fast it may send, by the name the kernel has for it; "" leaves that as it is.

    Attributes:
        rank: as given.
        incoming, outgoing: both ways.
    """

    def __init__(
        self, rank: int, connection: socket.socket, epoch: int, owner: Owner, silent_s: float, congestion: str
    ) -> None:
        _set_up(connection, congestion)
        self.rank = rank
        self._socket = connection
        self.incoming = Incoming(
            connection, silent_s, epoch, lambda frame: owner.heard(rank, frame), lambda why: owner.ended(rank, why)
        )
        gone = PeerLost(f"member {rank} has left", rank)
        self.outgoing = SendQueue(connection, lambda why: owner.ended(rank, why), gone)
        self._parts: dict[tuple[int, int], int] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"link-{rank}-{name}", daemon=True)
            for name, work in (("in", self.incoming.run), ("out", self.outgoing.run))
        ]
        self._running = set(self._threads)
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin to read."""
        for thread in self._threads:
            thread.start()

    def pulse(self, epoch: int, every_s: float) -> None:
        """Say that this member is alive, where nothing else has been said for so long."""
        if self.outgoing.idle_for(every_s):
            self.outgoing.send(PeerFrame(Kind.PULSE, epoch))

    def turn(self, epoch: int) -> None:
        """Another epoch begins, for what comes and for what is sent."""
        self.incoming.turn(epoch)
        self._parts.clear()

    def send_tagged(self, epoch: int, tag: int, payload: memoryview, of: Sending) -> None:
        """Send the next frame under a tag; one thread at a time for each tag."""
        part = self._parts.get((epoch, tag), 0)
        self._parts[epoch, tag] = (part + 1) % NUMBERS
        self.outgoing.send(PeerFrame(Kind.SEND, epoch, tag, part, len(payload)), payload, of)

    def leave(self) -> None:
        """Say that nothing comes any more."""
        self.outgoing.send(PeerFrame(Kind.LEAVE, 0))

    def await_end(self, deadline: float) -> None:
        """After ``leave``: wait until all that was sent has gone out and the other side has ended the link as well."""
        self.outgoing.flush(deadline)
        with suppress(OSError):
            # Not closed yet: the kernel would throw away what is still on its way, if anything came that nobody read.
            self._socket.shutdown(socket.SHUT_WR)
        self.incoming.leave_to_thread()  # Nobody else waits for what comes now: the other side's end.
        self._threads[0].join(max(0.0, deadline - monotonic()))

    def close(self) -> None:
        """End it at once, for both sides. On any thread; twice does no harm."""
        self.incoming.closing()
        self.outgoing.closing()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """End it where it may not have been started."""
        self.close()
        if self._threads[0].ident is None:
            self.incoming.abandon()
        for thread in self._threads:
            if thread.ident is None:
                self._is_over(thread)

    def join(self, within_s: float) -> None:
        """Wait for its threads, after ``close``."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(within_s)

    def _run(self, work: Callable[[], None]) -> None:
        work()
        self._is_over(threading.current_thread())

    def _is_over(self, thread: threading.Thread) -> None:
        with self._lock:
            self._running.discard(thread)
            last = not self._running
        if last:
            self._socket.close()


def _set_up(connection: socket.socket, congestion: str) -> None:
    # Timeouts of the kernel's, since Python's own would ask it twice for each read.
    tick = struct.pack("@ll", int(TICK_S), int(TICK_S % 1 * 1e6))
    connection.setblocking(True)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, tick)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, tick)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if congestion and hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):  # Not every kernel has it, nor lets everybody choose it.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
