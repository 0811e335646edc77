"""The process of a relay: it forwards connections to a port, and delivers every byte later by a delay that can change.

Threads that sleep do it: the timers of an event loop are late by up to a millisecond. It knows the standard library
only, says its port, reads ``delay_s jitter_s`` lines, and at the end of its input says how late deliveries were. Where
one of its threads fails, all of it ends with status 1.
"""

from __future__ import annotations

import argparse
import errno
import os
import random
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Condition, Thread
from time import perf_counter, sleep
from typing import Any

READ_BYTES = 65536

PIECE_BYTES = 1024
"""Where bytes are paid for, what is read at once is sent on in such pieces, as the link would deliver it."""

HELD_BYTES = 4 << 20
"""Taken in and not delivered, of one way of a connection; beyond it who sends has to wait."""

CONNECT_WITHIN_S = 20.0

REMEMBERED = 100_000
"""Deliveries whose lateness is kept."""


@dataclass
class Delay:
    """How long every byte is on the way; shared by all ways of a relay, and changed while they run."""

    delay_s: float
    jitter_s: float = 0.0


class WayClock:
    """When bytes come out of one way of a link: one after the other, each as long on the way as the delay then is.

    Args:
        delay: of each piece; its jitter is drawn evenly between none and all of it. None overtakes another.
        bytes_s: bandwidth; 0 is unlimited.
        seed: of the jitter.
    """

    def __init__(self, delay: Delay, bytes_s: float = 0.0, seed: str = "") -> None:
        self._delay = delay
        self._byte_s = 1 / bytes_s if bytes_s else 0.0
        self._random = random.Random(seed)
        self._free = 0.0
        self._last = 0.0

    def due(self, now: float, size: int) -> float:
        """When the last of ``size`` bytes is there that are handed in at ``now``; ``now`` never falls."""
        self._free = max(self._free, now) + size * self._byte_s
        extra_s = self._delay.jitter_s * self._random.random() if self._delay.jitter_s else 0.0
        self._last = max(self._last, self._free + self._delay.delay_s + extra_s)
        return self._last


@dataclass
class _Way:
    """One way of one connection.

    Attributes:
        pieces: what is on it and when each is due; None ends it.
        held: bytes of it.
        over: no more can be delivered.
    """

    source: socket.socket
    sink: socket.socket
    clock: WayClock
    whole: bool
    late: deque[float]
    pieces: SimpleQueue[tuple[float, bytes] | None] = field(default_factory=SimpleQueue)
    held: int = 0
    over: bool = False
    room: Condition = field(default_factory=Condition)

    def take(self) -> None:
        """Take in, as fast as it comes and there is room."""
        size = READ_BYTES if self.whole else PIECE_BYTES
        with suppress(OSError):
            while data := self.source.recv(READ_BYTES):
                now = perf_counter()
                for begin in range(0, len(data), size):
                    piece = data[begin : begin + size]
                    self.pieces.put((self.clock.due(now, len(piece)), piece))
                with self.room:
                    self.held += len(data)
                    self.room.wait_for(lambda: self.held < HELD_BYTES or self.over)
        self.pieces.put(None)

    def deliver(self) -> None:
        """Send each piece on when it is due, then the end; where nobody takes them, end the other side as well."""
        try:
            while (piece := self.pieces.get()) is not None:
                due, data = piece
                wait_s = due - perf_counter()
                if wait_s > 0:
                    sleep(wait_s)
                self.late.append(perf_counter() - due)
                self.sink.sendall(data)
                with self.room:
                    self.held -= len(data)
                    self.room.notify()
            self.sink.shutdown(socket.SHUT_WR)
        except OSError:
            with suppress(OSError):
                self.source.shutdown(socket.SHUT_RDWR)
            with self.room:
                self.over = True
                self.room.notify()


def accept(
    listener: socket.socket, target: tuple[str, int], delay: Delay, seed: int, bytes_s: float, late: deque[float]
) -> None:
    """Forward every connection, for ever; ``late`` is by how many seconds each delivery came too late."""
    number = 0
    while True:
        near, _ = listener.accept()
        number += 1
        try:
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far = socket.create_connection(target, CONNECT_WITHIN_S)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # Nobody's fault but the relay's.
            near.close()
            continue
        far.settimeout(None)
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, source, sink in (("up", near, far), ("down", far, near)):
            clock = WayClock(delay, bytes_s, f"{seed} {number} {name}")
            way = _Way(source, sink, clock, not bytes_s, late)
            Thread(target=way.take, daemon=True).start()
            Thread(target=way.deliver, daemon=True).start()


def follow(lines: Iterable[bytes], delay: Delay) -> None:
    """Change the delay as each line says: one way and jitter, in seconds."""
    for line in lines:
        delay.delay_s, delay.jitter_s = map(float, line.split())


def end_at_once(failure: Any) -> None:
    """What ends a thread unexpectedly ends the relay: a measurement over half of one would be worth nothing."""
    threading.__excepthook__(failure)
    os._exit(1)


def main() -> None:
    """Say the port, forward until the input ends, and say how late deliveries were."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("host")
    for name, kind in (("port", int), ("delay_s", float), ("jitter_s", float), ("seed", int), ("bytes_s", float)):
        parser.add_argument(name, type=kind)
    options = parser.parse_args()
    delay = Delay(options.delay_s, options.jitter_s)
    threading.excepthook = end_at_once
    with socket.create_server(("127.0.0.1", 0)) as listener:
        late: deque[float] = deque([0.0], maxlen=REMEMBERED)
        arguments = (listener, (options.host, options.port), delay, options.seed, options.bytes_s, late)
        Thread(target=accept, args=arguments, daemon=True).start()
        print(listener.getsockname()[1], flush=True)
        follow(sys.stdin.buffer, delay)
        ordered = sorted(late.copy())
        print(ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], flush=True)
        os._exit(0)  # Threads asleep in the middle of a delivery are not waited for.


if __name__ == "__main__":
    main()
