"""Lines for people, written by a thread of their own, so that whoever says something never waits for who reads it.

A terminal that is stopped, a pipe that nobody reads, a full disk: lines are dropped then, and counted, and the process
goes on. What waits is bounded, in lines and in the length of each.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

MAX_WAITING: Final = 1024
"""Lines that wait to be written; more are dropped. A reader that stops for a moment costs none."""

MAX_LINE_BYTES: Final = 16 * 2**10
"""A line is cut there, which leaves room for a long traceback. With ``MAX_WAITING`` it bounds the memory of lines that
nobody reads: 16 MiB."""

FLUSH_WITHIN_S: Final = 1.0
"""Time that waiting lines get when the process ends."""

_CUT: Final = " …\n".encode()


class LineWriter:
    """Writes lines to a file descriptor, in order, on a daemon thread. Nothing here raises, and only ``flush`` waits.

    Args:
        descriptor: where to; None: nowhere, for a process that was started without it.
        told: what to write about so many lines that were dropped, once something can be written again; None: nothing.

    Attributes:
        dropped: lines that were never written.
    """

    def __init__(self, descriptor: int | None, told: Callable[[int], str] | None = None) -> None:
        self.dropped = 0
        self.told = told
        self._descriptor = descriptor
        self._untold = 0
        self._lock = threading.RLock()  # Reentrant: a signal's handler may say something in the middle of it.
        self._waiting: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        threading.Thread(target=self._write, name=f"lines-{descriptor}", daemon=True).start()

    def put(self, text: str) -> None:
        """Have this written: one line or several, which stay together, each with its newline."""
        if self._descriptor is None or self._waiting.qsize() >= MAX_WAITING:
            self._drop()
            return
        line = text[:MAX_LINE_BYTES].encode("utf-8", "backslashreplace")
        self._waiting.put(line if len(line) <= MAX_LINE_BYTES else line[: MAX_LINE_BYTES - len(_CUT)] + _CUT)

    def flush(self, within_s: float = FLUSH_WITHIN_S) -> bool:
        """Wait until all that was put has been written or dropped; whether that was so in time."""
        done = threading.Event()
        self._waiting.put(done)
        return done.wait(within_s)

    def _drop(self) -> None:
        with self._lock:
            self.dropped += 1
            self._untold += 1

    def _write(self) -> None:
        while True:
            item = self._waiting.get()
            if isinstance(item, bytes) and not self._written(item):
                self._drop()
            elif self._untold:
                self._tell()
            if isinstance(item, threading.Event):
                item.set()

    def _tell(self) -> None:
        with self._lock:
            untold, self._untold = self._untold, 0
        if self.told is not None and not self._written(self.told(untold).encode("utf-8", "backslashreplace")):
            with self._lock:
                self._untold += untold

    def _written(self, line: bytes) -> bool:
        if self._descriptor is None:
            return False
        try:
            while line:
                try:
                    line = line[os.write(self._descriptor, line) :]
                except BlockingIOError:  # Whoever gave us the descriptor has it so.
                    select.select([], [self._descriptor], [])
        except (OSError, ValueError):  # Nobody reads, the disk is full, the terminal is gone.
            return False
        return True
