"""Websockets as bytes, for whoever sends what no library would: an upgrade, frames, and the wait for the end."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

WITHIN_S: Final = 60.0
"""Everything that is sent is answered, or the connection ended, by then on a busy machine."""

TEXT, BINARY, CLOSE = 1, 2, 8
END: Final = struct.pack("!H", 1000)

UPGRADE: Final = (
    "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Hangs(AssertionError):
    """Who listens neither answers nor ends the connection."""


def framed(payload: bytes, opcode: int = BINARY) -> bytes:
    """A websocket's frame of a client's; its mask is of zeros, so that the payload is as it is."""
    head = bytes([0x80 | opcode])
    if len(payload) < 126:
        head += bytes([0x80 | len(payload)])
    elif len(payload) < 2**16:
        head += struct.pack("!BH", 0x80 | 126, len(payload))
    else:
        head += struct.pack("!BQ", 0x80 | 127, len(payload))
    return head + bytes(4) + payload


class RawSocket:
    """A websocket that is open, as bytes."""

    def __init__(self, connection: socket.socket, came: bytes) -> None:
        self._connection = connection
        self._came = came

    def send(self, payloads: Sequence[bytes], opcode: int = BINARY, *, last: bool = True) -> None:
        """Messages, all at once, and where these are the ``last`` a close; who listens may hang up before."""
        data = b"".join(framed(each, opcode) for each in payloads)
        try:
            self._connection.sendall(data + (framed(END, CLOSE) if last else b""))
        except TimeoutError:
            raise Hangs("it does not read") from None
        except OSError:
            return

    def message(self) -> bytes:
        """The next message that comes: one short frame. Raises ``Hangs``, and ``OSError`` where the connection ends."""
        head = self._exactly(2)
        length = head[1] & 0x7F
        if length == 126:
            (length,) = struct.unpack("!H", self._exactly(2))
        return self._exactly(length)

    def end(self) -> None:
        """Read until the other side hangs up. Raises ``Hangs``."""
        try:
            while self._connection.recv(65536):
                pass
        except TimeoutError:
            raise Hangs("neither an answer nor an end") from None
        except OSError:
            return

    def _exactly(self, count: int) -> bytes:
        try:
            while len(self._came) < count:
                more = self._connection.recv(65536)
                if not more:
                    raise ConnectionResetError("it hung up")
                self._came += more
        except TimeoutError:
            raise Hangs("it says nothing") from None
        found, self._came = self._came[:count], self._came[count:]
        return found


@contextmanager
def raw_socket(port: int, path: str) -> Iterator[RawSocket]:
    """A websocket to a port of this machine. Raises ``Hangs``, and ``OSError`` where it is refused."""
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as connection:
        connection.sendall(UPGRADE.format(path=path, port=port).encode())
        came = b""
        try:
            while b"\r\n\r\n" not in came:
                more = connection.recv(65536)
                if not more:
                    raise ConnectionResetError("it hung up")
                came += more
        except TimeoutError:
            raise Hangs("no answer to an upgrade") from None
        head, _, rest = came.partition(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise ConnectionRefusedError(head.split(b"\r\n")[0].decode(errors="replace"))
        yield RawSocket(connection, rest)
