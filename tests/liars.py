"""A member of a fabric of two that says what a test wants."""

from __future__ import annotations

import socket
import time

from peers.frames import HEADER_BYTES, Kind, PeerFrame, pack, unpack
from peers.opening import receive_exactly

SECRET = "a secret of this test"


class Liar:
    """A member that knows the secret, and says what it likes."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def say(self, frame: PeerFrame, payload: bytes = b"") -> None:
        """Any frame at all."""
        self.connection.sendall(pack(frame) + payload)

    def hear(self, kind: Kind) -> PeerFrame:
        """The next frame of a kind."""
        while True:
            frame = unpack(receive_exactly(self.connection, HEADER_BYTES, time.monotonic() + 20))
            receive_exactly(self.connection, frame.length, time.monotonic() + 20)
            if frame.kind is kind:
                return frame


def header(kind: int, *rest: int) -> bytes:
    """One of any kind."""
    return bytes([kind]) + pack(PeerFrame(Kind.SEND, *rest))[1:]
