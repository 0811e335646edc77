"""Standard output and standard error that never keep anybody waiting: text files over a ``LineWriter``."""

from __future__ import annotations

import io
import sys
import threading
from typing import TextIO

from service.line_writer import MAX_LINE_BYTES, LineWriter


class LineStream(io.TextIOBase):
    """A ``sys.stderr`` over a writer: ``print``, warnings, tracebacks and progress bars go the way of log lines."""

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
