"""Frames as they come out of a socket: a header, then its payload into whatever memory that belongs in.

A short frame is read at once, header and payload together, and its payload copied; of a long one only the beginning is.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from time import monotonic
from typing import Final

from peers.frames import HEADER_BYTES, PeerFrame, unpack
from peers.outgoing import STUCK_S
from peers.secure import holds_of
from wire.errors import Code, ConnectionFailed

SILENT_S: Final = 10.0
"""A member from which nothing has come for so long is lost: it says some bytes every ``PULSE_EVERY_S``."""

WOKEN_EVERY: Final = 256 * 1024
"""Of a long payload so many bytes are awaited at once: a thread that is woken for every packet of a slow link takes as
much of the processor as a product beside it."""

SLOWEST_BYTES_S: Final = 64 * 1024
"""A payload that comes slower, ``STUCK_S`` beside, never comes: whoever reads it waits for nothing else meanwhile."""

TICK_MS: Final = 100.0

_AT_ONCE: Final = 4096
_DISCARDED_AT_ONCE: Final = 64 * 1024


class FrameReader:
    """For one thread at a time.

    Args:
        connection: a socket that blocks, and gives up now and then (``SO_RCVTIMEO``).
        silent_s: after so long without a byte the other side is lost.

    Attributes:
        heard_at: when something last came, by ``time.monotonic``.
    """

    def __init__(self, connection: socket.socket, silent_s: float = SILENT_S) -> None:
        self.heard_at = monotonic()
        self._silent_s = silent_s
        self._socket = connection
        self._holds = holds_of(connection)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._buffer = memoryview(bytearray(_AT_ONCE))
        self._begin = self._end = 0
        """Of what has been read into the buffer and not been taken out."""

    @property
    def has_frame(self) -> bool:
        """Whether a whole frame has been read ahead, of which the socket knows no more; or there may be one."""
        there = self._end - self._begin - HEADER_BYTES
        has = there >= 0 and there >= unpack(self._buffer[self._begin : self._begin + HEADER_BYTES]).length
        return has or self._holds()

    def header(self, enough: Callable[[], bool] | None) -> PeerFrame | None:
        """The next header; None where none has begun to come before it was ``enough``, None: at once.

        Raises ``ConnectionFailed`` where the other side has ended it, is silent, or sends no header.
        """
        quiet_from = monotonic()
        while self._end - self._begin < HEADER_BYTES:
            left = self._end - self._begin
            if self._begin:
                self._buffer[:left] = self._buffer[self._begin : self._end]
                self._begin, self._end = 0, left
            try:
                flags = socket.MSG_DONTWAIT if enough is None and not left else 0
                self._end += self._counted(self._socket.recv_into(self._buffer[left:], 0, flags))
            except BlockingIOError:  # Nothing there, or a tick is over.
                if not left and (enough is None or enough()):
                    return None
                self.check_silence(quiet_from)
        begin, self._begin = self._begin, self._begin + HEADER_BYTES
        return unpack(self._buffer[begin : self._begin])

    def fill(self, view: memoryview) -> None:
        """The next bytes, as many as ``view`` has. Raises as ``header`` does, and where they take too long, however
        often one of them comes."""
        self._fill(view, _deadline(len(view)))

    def _fill(self, view: memoryview, deadline: float) -> None:
        there = min(len(view), self._end - self._begin)
        if there:
            view[:there] = self._buffer[self._begin : self._begin + there]
            self._begin += there
            view = view[there:]
        if len(view) <= _AT_ONCE:
            self._fill_soon(view, deadline)
            return
        low = 1
        quiet_from = monotonic()
        while view:
            _check_late(deadline)
            try:
                view = view[self._counted(self._socket.recv_into(view, 0, socket.MSG_DONTWAIT)) :]
                quiet_from = self.heard_at
            except BlockingIOError:
                self.check_silence(quiet_from)
                # Never more than what is still to come: nobody would be woken for it.
                low = self._woken_by(min(len(view), WOKEN_EVERY), low)
                self._poll.poll(TICK_MS)
        self._woken_by(1, low)

    def _fill_soon(self, view: memoryview, deadline: float) -> None:
        """What is little comes at once."""
        quiet_from = monotonic()
        while view:
            _check_late(deadline)
            try:
                view = view[self._counted(self._socket.recv_into(view, 0, socket.MSG_WAITALL)) :]
                quiet_from = self.heard_at
            except BlockingIOError:
                self.check_silence(quiet_from)

    def _woken_by(self, count: int, before: int) -> int:
        """So many bytes make the socket readable from now on, instead of ``before``."""
        if count != before:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        return count

    def skip(self, length: int) -> None:
        """So many bytes, for nobody. Raises as ``fill`` does."""
        deadline = _deadline(length)
        scratch = memoryview(bytearray(min(length, _DISCARDED_AT_ONCE)))
        while length:
            part = scratch[: min(length, len(scratch))]
            self._fill(part, deadline)
            length -= len(part)

    def check_silence(self, quiet_from: float) -> None:
        """Raises ``ConnectionFailed`` where nothing has come since, and that is too long ago."""
        if monotonic() - quiet_from >= self._silent_s:
            raise ConnectionFailed(Code.TIMEOUT, f"nothing has come for {self._silent_s:g} s")

    def _counted(self, count: int) -> int:
        if not count:
            raise ConnectionFailed(Code.LOST, "its connection has ended")
        self.heard_at = monotonic()
        return count


def _deadline(length: int) -> float:
    """Until when so many bytes have come, by ``time.monotonic``."""
    return monotonic() + STUCK_S + length / SLOWEST_BYTES_S


def _check_late(deadline: float) -> None:
    """Raises ``ConnectionFailed`` where it is over."""
    if monotonic() > deadline:
        raise ConnectionFailed(Code.TIMEOUT, f"a frame comes at less than {SLOWEST_BYTES_S} bytes a second")
