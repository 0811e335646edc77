"""Frames that come from one other member, each read straight into the memory where it belongs.

Whoever waits for a frame reads it, since to be woken by another thread takes several times as long as to read a short
one. A thread of the link's reads what comes while nobody waits: a product may go on meanwhile, and a member that is
gone or silent is noticed. Only one of them reads at a time; the kernel is told whether the link's thread shall.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Final

from peers.frames import Kind, PeerFrame
from peers.inbox import Expected, Inbox, Key
from peers.outgoing import STUCK_S, reason
from peers.reader import FrameReader
from peers.secure import holds_of
from wire.errors import Code, ConnectionFailed

LOOK_EVERY_S: Final = 0.1
"""A link that nobody reads is read by its own thread again after so long."""

LONG_BYTES: Final = 64 * 1024
"""From so many on, in one frame or in all of a collective, the link's thread reads at once: probably somebody computes
meanwhile, and tiles that he has not read go on to nobody."""

_LOOK_AGAIN_S: Final = 0.002


class Incoming:
    """Safe on any thread.

    Args:
        connection, silent_s: see ``FrameReader``.
        epoch: the group's first.
        heard: called with each frame that has no payload.
        ended: called with the reason where it cannot go on.
    """

    def __init__(
        self,
        connection: socket.socket,
        silent_s: float,
        epoch: int,
        heard: Callable[[PeerFrame], None],
        ended: Callable[[str], None],
    ) -> None:
        self._heard, self._ended = heard, ended
        self._closed = False
        self._lock = threading.Lock()
        """Guards the inbox."""
        self._inbox = Inbox(epoch)
        self._reading = threading.Lock()
        """Whoever has it reads, and says whether the link's thread shall."""
        self._handing_over = threading.Lock()
        """Held while ``_reading`` is taken for no more than to tell the link's thread, which waits for that."""
        self._reader = FrameReader(connection, silent_s)
        self._readable = _Readable(connection)
        self._parked: PeerFrame | None = None
        """A header whose payload belongs nowhere yet, and is too long to be kept."""

    @property
    def dropped(self) -> int:
        """Frames of another epoch that came."""
        return self._inbox.dropped

    @property
    def waiting(self) -> bool:
        """Whether anything is expected."""
        return self._inbox.waiting

    def begin(self, epoch: int, number: int, expected: Mapping[Key, Expected]) -> None:
        """A collective has begun, unless its epoch is over. Raises as ``Inbox.begin`` does."""
        with self._lock:
            here = self._inbox.begin(number, expected) if epoch == self._inbox.epoch else []
        for each in here:
            each.arrived()
        if self._parked is not None or sum(len(each.view) for each in expected.values()) >= LONG_BYTES:
            self.leave_to_thread()

    def ask(self, epoch: int, tag: int, expected: Expected) -> None:
        """Expect the next frame under a tag, unless the epoch is over. Raises as ``Inbox.ask`` does."""
        with self._lock:
            here = epoch == self._inbox.epoch and self._inbox.ask(tag, expected)
        if here:
            expected.arrived()
        elif self._parked is not None or len(expected.view) >= LONG_BYTES:
            self.leave_to_thread()

    def keep_ahead(self, epoch: int, most: int) -> None:
        """While anything is expected of this epoch, early frames of so many bytes more are kept: what is expected may
        come behind them, and who computes with it may ask for them only then."""
        with self._lock:
            if epoch == self._inbox.epoch:
                self._inbox.ahead_bytes = max(self._inbox.ahead_bytes, most)

    def turn(self, epoch: int) -> None:
        """Another epoch begins: nothing is expected, and frames of earlier ones are dropped."""
        with self._lock:
            self._inbox = Inbox(epoch, self._inbox.dropped)

    def read_until(self, enough: Callable[[], bool]) -> bool:
        """Read on this thread until it is enough; False where another thread reads, or nobody can."""
        if not self._readable.choosy or not self._reading.acquire(blocking=False):
            return False
        try:
            self._readable.by_thread(False)
            # Behind a header that is parked its payload has been read ahead, which is no frame.
            while not enough() or (self._parked is None and self._reader.has_frame):
                if not self._read_frame(enough):
                    return False
            return True
        except Exception as error:  # Whatever it is, nobody would read any more.
            self._end(error)
            return False
        finally:
            self._reading.release()

    def leave_to_thread(self) -> None:
        """Unless somebody reads just now, the link's thread shall."""
        with self._handing_over:
            if self._reading.acquire(blocking=False):
                self._readable.by_thread(True)
                self._reading.release()

    def closing(self) -> None:
        """The socket is about to be shut down: end, and say nothing of it."""
        self._closed = True

    def abandon(self) -> None:
        """The link's thread never was: end, and let go of what it would have."""
        self._closed = True
        self._readable.close()

    def run(self) -> None:
        """Read what nobody else reads, until it is closed; the thread's work."""
        parked_from: float | None = None
        heard_at = monotonic()
        try:
            while not self._closed:
                if self._readable.wait(LOOK_EVERY_S):
                    self._read_what_is_there()
                now = monotonic()
                if self._parked is None:
                    parked_from, heard_at = None, max(heard_at, self._reader.heard_at)
                else:
                    parked_from, heard_at = parked_from or now, now
                if parked_from is not None and now - parked_from >= STUCK_S:
                    raise ConnectionFailed(Code.UNEXPECTED_MESSAGE, f"nobody has asked for it within {STUCK_S:g} s")
                self._reader.check_silence(heard_at)
        except Exception as error:  # Whatever it is, nobody would read any more.
            self._end(error)
        finally:
            self._closed = True
            with self._reading:  # Whoever waits has noticed.
                self._readable.close()

    def _read_what_is_there(self) -> None:
        with self._handing_over:  # It may be woken before the other thread has let go; it is told only once.
            pass
        if not self._reading.acquire(blocking=False):
            return
        try:
            while self._read_frame(None):
                pass
            self._readable.by_thread(self._parked is None)
        finally:
            self._reading.release()

    def _read_frame(self, enough: Callable[[], bool] | None) -> bool:
        """Read one frame; False where there is none. As ``FrameReader.header``."""
        frame, self._parked = self._parked, None
        frame = frame or self._reader.header(enough)
        if frame is None:
            return False
        if frame.kind >= Kind.PULSE:
            self._heard(frame)
            return True
        return self._take(frame)

    def _take(self, frame: PeerFrame) -> bool:
        """Read a payload; False where that has to wait."""
        with self._lock:
            current = frame.epoch == self._inbox.epoch
            expected = self._inbox.find(frame) if current else None
            if not current:
                self._inbox.dropped += 1
            elif expected is None and not self._inbox.has_room(frame):
                self._parked = frame
                return False
        if expected is not None:
            self._reader.fill(expected.view)
        elif not current:
            self._reader.skip(frame.length)
        else:
            data = bytearray(frame.length)
            self._reader.fill(memoryview(data))
            with self._lock:
                if frame.epoch == self._inbox.epoch:
                    expected = self._inbox.keep(frame, data)
        if expected is not None:
            expected.arrived()
        return True

    def _end(self, error: Exception) -> None:
        if not self._closed:
            self._ended(reason(error))


class _Readable:
    """Whether a socket has something to read: asked by the link's thread, and only while that shall read it.

    Where the kernel cannot be asked so (it has no epoll) the thread always reads, and ``choosy`` is False.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.choosy = hasattr(select, "epoll")
        self._connection = connection
        self._holds = holds_of(connection)
        self._wanted = True
        if self.choosy:
            self._epoll = select.epoll()
            self._epoll.register(connection, select.EPOLLIN | select.EPOLLONESHOT)

    def wait(self, within_s: float) -> bool:
        """Whether there is, in that time."""
        if self._wanted and self._holds():
            return True
        if self.choosy:
            return bool(self._epoll.poll(within_s))
        if not self._wanted:
            sleep(_LOOK_AGAIN_S)
            return False
        return bool(select.select([self._connection], [], [], within_s)[0])

    def by_thread(self, wanted: bool) -> None:
        """Whether the link's thread shall be told, once; said by whoever may read."""
        changed = wanted or self._wanted
        self._wanted = wanted
        if self.choosy and changed:
            with suppress(ValueError, OSError):  # It is over.
                self._epoll.modify(self._connection, select.EPOLLIN | select.EPOLLONESHOT if wanted else 0)

    def close(self) -> None:
        """The thread has ended."""
        if self.choosy:
            self._epoll.close()
