"""A link's socket behind TLS, with the calls that links make of a plain one.

One thread may read while another sends: what decrypts and encrypts is locked, and the kernel is waited for outside the
lock. Records are handed to TLS whole, so that whatever is not decrypted yet, and can be, is known (``holds``): the
kernel no longer says that it is there.
"""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final

SENT_AT_ONCE: Final = 64 * 1024
"""Bytes that are encrypted before they are given to the kernel."""

READ_AT_ONCE: Final = 64 * 1024

_RECORD: Final = 5
"""Bytes of a record's header, the last two of which are the length of the rest."""


class SecureSocket(socket.socket):
    """Over a socket that goes on to belong to the caller, who may close it; ``handshake`` comes first.

    Args:
        plain: a TCP socket on which nothing has been said.
        context: of TLS.
        server: whether this side was dialled.

    Attributes:
        shown: the digest of the other side's certificate, once there was a handshake.
    """

    shown = ""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, *, server: bool) -> None:
        super().__init__(plain.family, plain.type, plain.proto, fileno=os.dup(plain.fileno()))
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server)
        self._lock = threading.Lock()
        """Guards the four above."""
        self._came = bytearray()
        self._unsent = memoryview(b"")
        self._owed = 0
        """Bytes that are encrypted in what is unsent, and that the caller still has to be told were taken."""

    def handshake(self, deadline: float) -> None:
        """Raises ``OSError``, also where it takes longer than ``deadline``, by ``time.monotonic``."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush(deadline)
                self._in.write(self._next(deadline))
            except ssl.SSLError:
                with suppress(OSError):  # What this side has against the other one.
                    self._flush(deadline)
                raise
        self._flush(deadline)
        self.shown = digest_of(self._tls.getpeercert(True) or b"")

    def holds(self) -> bool:
        """Whether there is something to read of which the kernel does not know."""
        with self._lock:
            return self._tls.pending() > 0 or self._record_length() > 0

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Up to as many bytes as ``buffer`` has, 0 where the other side has ended it. Raises as plain ones do."""
        while True:
            with self._lock:
                try:
                    count: Any = self._tls.read(len(buffer), buffer)
                    return int(count)
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return 0
                except ssl.SSLWantReadError:
                    if length := self._record_length():
                        self._in.write(self._came[:length])
                        del self._came[:length]
                        continue
            data = super().recv(READ_AT_ONCE, flags & socket.MSG_DONTWAIT)
            if not data:
                return 0
            self._came += data

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """As ``recv_into``."""
        buffer = memoryview(bytearray(bufsize))
        return bytes(buffer[: self.recv_into(buffer, 0, flags)])

    def sendmsg(self, buffers: Any, ancdata: Any = (), flags: int = 0, address: Any = None) -> int:
        """How many bytes of these have left. Where that is none it raises as plain ones do, and the next call has to
        begin with the same ones, which are encrypted already."""
        if not self._unsent:
            data = _first(buffers, SENT_AT_ONCE)
            with self._lock:
                self._owed = self._tls.write(data)
                self._unsent = memoryview(self._out.read())
        while self._unsent:
            self._unsent = self._unsent[super().send(self._unsent, flags) :]
        owed, self._owed = self._owed, 0
        return owed

    def sendall(self, data: Any, flags: int = 0) -> None:
        """All of it, within the timeout of each part."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.sendmsg([rest], (), flags) :]

    def setsockopt(self, level: int, option: int, value: Any, length: int | None = None) -> None:
        """How many bytes wake who waits is counted in other bytes than the caller's: it is left as it is."""
        if (level, option) != (socket.SOL_SOCKET, socket.SO_RCVLOWAT):
            super().setsockopt(level, option, value)

    def _record_length(self) -> int:
        """Of the first whole record that has come; 0: there is none."""
        length = _RECORD + int.from_bytes(self._came[3:_RECORD], "big")
        return length if len(self._came) >= max(length, _RECORD) else 0

    def _flush(self, deadline: float) -> None:
        self.settimeout(max(0.001, deadline - monotonic()))
        super().sendall(self._out.read())

    def _next(self, deadline: float) -> bytes:
        left = deadline - monotonic()
        if left <= 0:
            raise TimeoutError("not in time")
        self.settimeout(left)
        while not (length := self._record_length()):
            data = super().recv(READ_AT_ONCE)
            if not data:
                raise ConnectionResetError("it hung up")
            self._came += data
            self.settimeout(max(0.001, deadline - monotonic()))
        record = bytes(self._came[:length])
        del self._came[:length]
        return record


def digest_of(certificate: bytes) -> str:
    """What tells one certificate, in DER, from all others."""
    return hashlib.sha256(certificate).hexdigest()


def holds_of(connection: socket.socket) -> Callable[[], bool]:
    """Whether a socket holds something of which the kernel does not know; plain ones never do."""
    return connection.holds if isinstance(connection, SecureSocket) else _never


def _never() -> bool:
    return False


def _first(buffers: Any, most: int) -> bytes:
    """The first bytes of several buffers, ``most`` at most."""
    data = bytearray()
    for each in buffers:
        data += memoryview(each).cast("B")[: most - len(data)]
        if len(data) == most:
            break
    return bytes(data)
