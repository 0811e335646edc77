"""A long way between two programs of one machine: TCP, with every byte so much later, and only so many bytes a second.

    with DelayRelay(port, delay_s=0.01, bytes_s=1e6) as relay:
        ...  # dial 127.0.0.1:relay.port instead

It runs in a process of its own, with threads that sleep: the timers of an event loop are late by up to a millisecond,
and beside a device's own work they would be later still.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from time import perf_counter, sleep
from types import TracebackType

READ_BYTES = 65536

PIECE_BYTES = 1024
"""What is read at once is sent on in such pieces, as the link would deliver it."""

WITHIN_S = 30.0

REMEMBERED = 100_000
"""Deliveries whose lateness is kept."""


class WayClock:
    """When bytes come out of one way of a link: they leave one after the other, and are all as long on the way.

    Args:
        delay_s: of each byte.
        bytes_s: bandwidth; 0 is unlimited.
    """

    def __init__(self, delay_s: float, bytes_s: float) -> None:
        self._delay_s = delay_s
        self._byte_s = 1 / bytes_s if bytes_s else 0.0
        self._free = 0.0

    def due(self, now: float, size: int) -> float:
        """When the last of ``size`` bytes is there that are handed in at ``now``; ``now`` never falls."""
        self._free = max(self._free, now) + size * self._byte_s
        return self._free + self._delay_s


class DelayRelay:
    """The process; a context manager. What it has taken in and not delivered is not limited.

    Args:
        port: where connections go to, on this machine.
        delay_s: one way; a round trip takes twice that.
        bytes_s: of each way of each connection; 0 is unlimited.

    Attributes:
        port: what to dial instead.
        late_s: once it has ended, by how much deliveries came too late: median and 99th percentile.
    """

    def __init__(self, port: int, delay_s: float, bytes_s: float = 0.0) -> None:
        self.port = 0
        self.late_s = (0.0, 0.0)
        self._arguments = [str(port), str(delay_s), str(bytes_s)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> DelayRelay:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *self._arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the relay did not start")
        self.port = int(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        output, _ = self._process.communicate(timeout=WITHIN_S)  # The end of its input is its end.
        median, most = map(float, output.split())
        self.late_s = median, most


def accept(listener: socket.socket, port: int, delay_s: float, bytes_s: float, late: deque[float]) -> None:
    """Forward every connection, for ever; ``late`` is by how many seconds each delivery came too late."""
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", port))
        except OSError:
            near.close()
            continue
        for source, sink in ((near, far), (far, near)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pieces: SimpleQueue[tuple[float, bytes] | None] = SimpleQueue()
            clock = WayClock(delay_s, bytes_s)
            Thread(target=_take, args=(source, clock, pieces), daemon=True).start()
            Thread(target=_deliver, args=(source, sink, pieces, late), daemon=True).start()


def _take(source: socket.socket, clock: WayClock, pieces: SimpleQueue[tuple[float, bytes] | None]) -> None:
    """Take in one way of a connection, as fast as it comes."""
    with suppress(OSError):
        while data := source.recv(READ_BYTES):
            now = perf_counter()
            for begin in range(0, len(data), PIECE_BYTES):
                piece = data[begin : begin + PIECE_BYTES]
                pieces.put((clock.due(now, len(piece)), piece))
    pieces.put(None)


def _deliver(
    source: socket.socket, sink: socket.socket, pieces: SimpleQueue[tuple[float, bytes] | None], late: deque[float]
) -> None:
    """Send each piece on when it is due, then the end; where nobody takes them, end the other side as well."""
    try:
        while (piece := pieces.get()) is not None:
            due, data = piece
            wait_s = due - perf_counter()
            if wait_s > 0:
                sleep(wait_s)
            late.append(perf_counter() - due)
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        with suppress(OSError):
            source.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Say the port, forward until the input ends, and say how late deliveries were."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("delay_s", type=float)
    parser.add_argument("bytes_s", type=float)
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        late: deque[float] = deque([0.0], maxlen=REMEMBERED)
        arguments = (listener, options.port, options.delay_s, options.bytes_s, late)
        Thread(target=accept, args=arguments, daemon=True).start()
        print(listener.getsockname()[1], flush=True)
        sys.stdin.buffer.read()
        ordered = sorted(late)
        print(ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100])


if __name__ == "__main__":
    main()
