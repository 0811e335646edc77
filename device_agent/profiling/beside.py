"""What sending and receiving costs a product that is computed meanwhile."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, perf_counter, sleep
from typing import Final

import torch
from torch.nn import functional

SIZE: Final = 512
"""Rows and columns of the product."""

BYTES_S: Final = 125e6
"""Bytes a second each way: a gigabit link, both ways full."""

PIECE_BYTES: Final = 64 * 1024

SECONDS: Final = 0.3
"""Of products, in all; half of them beside a transfer."""

TURNS: Final = 6


def measured_cost() -> float:
    """Seconds of products that are lost for each byte that is sent and received. Computes on this thread."""
    rows, matrix = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    functional.linear(rows, matrix)
    alone = beside = 0.0
    # By turns, so that whatever else goes on here slows both.
    for _ in range(TURNS // 2):
        alone += _products(rows, matrix, SECONDS / TURNS)
        with _Transfer():
            beside += _products(rows, matrix, SECONDS / TURNS)
    return max(1 - beside / alone, 0.0) / BYTES_S if alone else 0.0


def byte_cost(
    moving: Callable[[], Callable[[], bool]], begin: Callable[[], object], seconds: float, sent: float
) -> float:
    """The same beside real transfers, by turns. Computes on this thread.

    moving: begins some, and returns what says whether they are done. begin: called before each turn, as everyone
        begins together. seconds: of products alone, in each of `TURNS` / 2 turns. sent: bytes of a turn's transfers.
    """
    rows, matrix = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    functional.linear(rows, matrix)
    alone = took = made = 0.0
    for _ in range(TURNS // 2):
        begin()
        alone += _products(rows, matrix, seconds)
        begin()
        done, begun, count = moving(), perf_counter(), 0
        while not done() or not count:
            functional.linear(rows, matrix)
            count += 1
        took += perf_counter() - begun
        made += count
    turns = TURNS // 2
    return max(took - made * turns / alone, 0.0) / (turns * sent) if alone else 0.0


def _products(rows: torch.Tensor, matrix: torch.Tensor, seconds: float) -> float:
    """Products a second."""
    count, begun = 0, perf_counter()
    while perf_counter() - begun < seconds:
        functional.linear(rows, matrix)
        count += 1
    return count / (perf_counter() - begun)


class _Transfer:
    """Bytes from one thread to another through the system's sockets, at a link's pace; a context manager."""

    def __enter__(self) -> None:
        self._out, self._into = socket.socketpair()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for each in (self._out, self._into):
            with suppress(OSError):  # The other end may have shut it down.
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._out.close()
        self._into.close()

    def _send(self) -> None:
        piece, sent, begun = bytes(PIECE_BYTES), 0, monotonic()
        with suppress(OSError):  # It is over.
            while not self._over.is_set():
                self._out.sendall(piece)
                sent += PIECE_BYTES
                sleep(max(0.0, begun + sent / BYTES_S - monotonic()))

    def _receive(self) -> None:
        into = bytearray(PIECE_BYTES)
        with suppress(OSError):  # It is over.
            while self._into.recv_into(into):
                pass
