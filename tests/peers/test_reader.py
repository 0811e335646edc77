"""Frames that come slowly: what is awaited of them is bounded as a whole, and not from byte to byte."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from peers.reader import FrameReader
from wire.errors import Code, ConnectionFailed


class Trickle:
    """A socket that says so many bytes every tenth of a second."""

    def __init__(self) -> None:
        self.here, self._there = socket.socketpair()
        self.here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 50_000))
        self._over = threading.Event()

    def start(self, at_once: int) -> None:
        """On a thread of its own."""
        threading.Thread(target=self._say, args=(bytes(at_once),), daemon=True).start()

    def _say(self, data: bytes) -> None:
        while not self._over.wait(0.1):
            self._there.send(data)

    def close(self) -> None:
        """Both ends."""
        self._over.set()
        self.here.close()
        self._there.close()


@pytest.fixture
def trickle() -> Iterator[Trickle]:
    made = Trickle()
    yield made
    made.close()


@pytest.mark.parametrize("length", [100, 20_000])
@pytest.mark.parametrize("how", ["fill", "skip"])
def test_a_frame_that_comes_byte_by_byte_is_given_up(
    length: int, how: str, trickle: Trickle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though none of its bytes lets the reader wait for long: whoever reads it would wait for hours."""
    monkeypatch.setattr("peers.reader.STUCK_S", 0.5)
    reader, began = FrameReader(trickle.here), time.monotonic()
    trickle.start(1)
    with pytest.raises(ConnectionFailed) as late:
        reader.fill(memoryview(bytearray(length))) if how == "fill" else reader.skip(length)
    assert late.value.code is Code.TIMEOUT and 0.4 < time.monotonic() - began < 5


@pytest.mark.parametrize("length", [2_000, 70_000])
def test_a_slow_link_has_the_time_that_its_bytes_take(
    length: int, trickle: Trickle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the slowest rate that there may be, beside the time for anything at all."""
    monkeypatch.setattr("peers.reader.STUCK_S", 0.2)
    monkeypatch.setattr("peers.reader.SLOWEST_BYTES_S", length / 10)
    reader, began = FrameReader(trickle.here), time.monotonic()
    trickle.start(length // 6)
    reader.skip(length)
    assert time.monotonic() - began > 0.4
