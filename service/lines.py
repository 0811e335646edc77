"""Lines for people, written by a thread of their own, so that whoever says something never waits for who reads it.

A terminal that is stopped, a pipe that nobody reads, a full disk: lines are dropped then, and counted, and the process
goes on. What waits is bounded, in lines and in the length of each. Standard output and standard error can be put behind
it, so that ``print``, warnings, tracebacks and progress bars go the way of log lines.
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, TextIO

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


class LineStream(io.TextIOBase):
    """A text file over a writer, which never keeps anybody waiting."""

    def __init__(self, writer: LineWriter, descriptor: int | None, terminal: bool) -> None:
        super().__init__()
        self.writer = writer
        self._descriptor = descriptor
        self._terminal = terminal
        self._begun = ""
        self._lock = threading.RLock()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """What it writes."""
        return "utf-8"

    def write(self, text: str, /) -> int:
        """Take text; whole lines are passed on at once, a line that has begun waits for ``flush`` or its end."""
        with self._lock:
            whole, newline, begun = (self._begun + text).rpartition("\n")
            self._begun = begun[:MAX_LINE_BYTES]
            if newline:
                self.writer.put(whole + newline)
        return len(text)

    def flush(self) -> None:
        """Pass on what has begun; waits for nothing."""
        with self._lock:
            begun, self._begun = self._begun, ""
            if begun:
                self.writer.put(begun)

    def writable(self) -> bool:
        """It is."""
        return True

    def isatty(self) -> bool:
        """Whether a person looks at it."""
        return self._terminal

    def fileno(self) -> int:
        """Where it writes. Raises ``OSError`` where that is nowhere."""
        if self._descriptor is None:
            raise io.UnsupportedOperation("there is no such file here")
        return self._descriptor


def line_stream(stream: TextIO | LineStream | None) -> LineStream:
    """What takes the place of ``sys.stdout`` or ``sys.stderr``; the same again where it has done so already."""
    if isinstance(stream, LineStream):
        return stream
    try:
        descriptor, terminal = (stream.fileno(), stream.isatty()) if stream is not None else (None, False)
    except (OSError, ValueError):  # Closed, or no file at all.
        descriptor, terminal = None, False
    return LineStream(LineWriter(descriptor), descriptor, terminal)


def take_streams() -> tuple[LineStream, LineStream]:
    """Put ``sys.stdout`` and ``sys.stderr`` behind writers: what is said can no longer keep this process up."""
    out, err = line_stream(sys.stdout), line_stream(sys.stderr)
    sys.stdout, sys.stderr = out, err
    return out, err
