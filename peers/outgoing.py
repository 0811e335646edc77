"""Frames on their way to one other member.

A frame leaves at once, on the thread that sends it, as far as the kernel takes it; what is left waits in a queue for a
thread that blocks in its stead.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final, Protocol

from peers.frames import PeerFrame, pack
from wire.errors import Code, ConnectionFailed

STUCK_S: Final = 120.0
"""A member that takes nothing for so long, or sends what this one does not ask for within it, is lost; it is more than
a member computes at once."""


class Sending(Protocol):
    """What a payload is sent for: it waits until that may be changed."""

    def hold(self) -> None:
        """It may not."""

    def release(self) -> None:
        """It may."""

    def fail(self, error: Exception) -> None:
        """It will never leave."""


class SendQueue:
    """Safe on any thread.

    Args:
        connection: a socket that blocks, and gives up now and then (``SO_SNDTIMEO``).
        ended: called with the reason where it cannot go on.
        gone: what those are told whose payloads have not left when it is closed.
    """

    def __init__(self, connection: socket.socket, ended: Callable[[str], None], gone: Exception) -> None:
        self._socket = connection
        self._ended, self._gone = ended, gone
        self._closed = False
        self._spoke = monotonic()
        self._queue: deque[tuple[list[memoryview], Sending | None]] = deque()
        self._changed = threading.Condition()
        """Guards the queue. While that is not empty only the thread sends."""

    def send(self, frame: PeerFrame, payload: memoryview | None = None, of: Sending | None = None) -> None:
        """Send a frame behind all that were sent before; never waits.

        Args:
            payload: as many bytes as the frame says.
            of: is held while they have not left.
        """
        header = memoryview(pack(frame))
        parts = [header] if payload is None else [header, payload]
        with self._changed:
            if self._closed:
                if of is not None:
                    of.fail(self._gone)
                return
            if not self._queue:
                with suppress(OSError):  # Full, or over; the thread finds out which.
                    parts = self._send_some(parts, socket.MSG_DONTWAIT)
            if parts:
                if of is not None:
                    of.hold()
                self._queue.append((parts, of))
                self._changed.notify_all()

    def idle_for(self, seconds: float) -> bool:
        """Whether nothing has left for so long, and nothing waits."""
        return not self._queue and monotonic() - self._spoke >= seconds

    def flush(self, deadline: float) -> None:
        """Wait until all has been sent, but not beyond ``deadline``, by ``time.monotonic``."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._queue, max(0.0, deadline - monotonic()))

    def closing(self) -> None:
        """The socket is about to be shut down: end, and say nothing of it."""
        with self._changed:
            self._closed = True
            left = [of for _, of in self._queue if of is not None]
            self._changed.notify_all()
        for each in left:
            each.fail(self._gone)

    def run(self) -> None:
        """Send what waits, until it is closed; the thread's work."""
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or self._queue)
                    if self._closed:
                        return
                    parts, of = self._queue[0]
                self._send_all(parts)
                with self._changed:
                    self._queue.popleft()
                    self._changed.notify_all()
                if of is not None:
                    of.release()
        except Exception as error:  # Whatever it is, nothing would be sent any more.
            if not self._closed:
                self._ended(reason(error))

    def _send_all(self, parts: list[memoryview]) -> None:
        stuck_from = monotonic()
        while parts:
            try:
                parts = self._send_some(parts, 0)
                stuck_from = monotonic()
            except BlockingIOError:  # A tick is over.
                if self._closed or monotonic() - stuck_from >= STUCK_S:
                    raise ConnectionFailed(Code.TIMEOUT, f"it has taken nothing for {STUCK_S:g} s") from None

    def _send_some(self, parts: list[memoryview], flags: int) -> list[memoryview]:
        """What is left of these once the kernel has taken what it takes. Raises ``OSError`` where that is nothing."""
        count = self._socket.sendmsg(parts, (), flags)
        self._spoke = monotonic()
        while parts and count >= len(parts[0]):
            count -= len(parts[0])
            parts = parts[1:]
        return [parts[0][count:], *parts[1:]] if parts else parts


def reason(error: Exception) -> str:
    """Why a link has ended, for people."""
    if isinstance(error, ConnectionFailed):
        return error.message
    return error.strerror or str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
