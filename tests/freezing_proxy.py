"""A network for tests that stands still: TCP forwarded byte by byte, and at a known byte, or on call, no more of it.

    with FreezingProxy(port) as proxy:
        proxy.freeze_after(100_000)
        ...  # dial proxy.port instead
        proxy.frozen.wait(20)

Sockets stay open while they are frozen, and what a side sends is taken and goes nowhere: a network whose packets
vanish. It runs on threads of its own, so that a test which waits does not hold it up.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

BLOCK = 4096


class FreezingProxy:
    """Forwards connections on a free port of this machine to ``target``, a port; a context manager.

    Attributes:
        port: what to dial instead of ``target``.
        connections: dialled so far.
        swallows: while True, new connections are taken and go nowhere.
        frozen: set once a connection stands still, see ``freeze_after``.
    """

    def __init__(self, target: int) -> None:
        self.connections = 0
        self.swallows = False
        self.frozen = threading.Event()
        self._target = target
        self._left: int | None = None
        self._ways: tuple[str, ...] = ()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> FreezingProxy:
        self._start(self._accept)
        return self

    def __exit__(self, *error: object) -> None:
        _end(self._listener)
        self.cut()

    def freeze_after(self, count: int, *ways: str) -> None:
        """Once ``count`` more bytes have come for ``target``, the connection that has brought the last of them stands
        still for good: "up", which is to ``target``, or "down", both where none is said. Later ones do not."""
        self.frozen.clear()
        self._ways = ways or ("up", "down")
        self._left = count

    def thaw(self) -> None:
        """No connection will stand still; those that do are ended."""
        stuck, self._left, self.swallows = self.frozen.is_set() or self.swallows, None, False
        self.frozen.clear()
        if stuck:
            self.cut()

    def cut(self) -> None:
        """End every connection."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            _end(each)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.connections += 1
                self._sockets.append(near)
                if self.swallows:
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self._sockets.append(far)
                still: set[str] = set()
                self._start(self._forward, near, far, "up", still)
                self._start(self._forward, far, near, "down", still)

    def _forward(self, source: socket.socket, sink: socket.socket, way: str, still: set[str]) -> None:
        """One way of one connection, until either side ends; while it stands still not even an end goes through."""
        with suppress(OSError):
            while data := source.recv(BLOCK):
                if way == "up" and self._left is not None:
                    self._left -= len(data)
                    if self._left <= 0:
                        self._left = None
                        still.update(self._ways)
                        self.frozen.set()
                if way not in still:
                    sink.sendall(data)
        if way not in still:
            _end(source)
            _end(sink)


def _end(each: socket.socket) -> None:
    with suppress(OSError):  # Threads that read it wake by this, not by its being closed.
        each.shutdown(socket.SHUT_RDWR)
    each.close()
