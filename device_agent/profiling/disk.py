"""How fast this device reads weights from its disk, past the system's cache, as they are read while they are used."""

from __future__ import annotations

import mmap
import os
from collections.abc import Generator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import perf_counter
from typing import Final

from split_model.offload.disk_calls import drop_cached, has_direct, open_past_cache, read_into

PIECE_BYTES: Final = 8 << 20
PIECES: Final = 4

SECONDS: Final = 1.0
"""Of reading. Limits on disks are kept to by slices of 100 ms, so less says little."""


def measured_read(folder: Path) -> float:
    """Bytes a second of the disk on which ``folder`` is, one piece behind the other, for about a second.

    The folder is made where it is not there. A file of some pieces is written to it, read again and again, and removed:
    a checkpoint's own files may be on another disk. The first piece is not counted, since a disk that was idle gives
    some bytes at once. Where the file system knows no direct reads, what the system has cached is dropped before.
    Raises OSError where nothing can be written or read there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=folder, prefix="measured-", delete=False) as file, ExitStack() as stack:
        try:
            reading = _opened(Path(file.name), stack)
        finally:
            os.unlink(file.name)  # Nothing is left of it, even where this process is killed.
        some = os.urandom(PIECE_BYTES)
        for _ in range(PIECES):
            file.write(some)
        file.flush()
        os.fsync(file.fileno())
        pieces = _pieces(reading)
        next(pieces)
        began, total = perf_counter(), 0
        for count in pieces:
            total += count
            if perf_counter() - began >= SECONDS:
                break
        pieces.close()
        return total / max(perf_counter() - began, 1e-9)


@dataclass(frozen=True)
class _Reading:
    """Descriptors of one file. direct: for direct reads; None where it cannot be opened so."""

    direct: int | None
    plain: int


def _opened(file: Path, stack: ExitStack) -> _Reading:
    """Until the stack ends. Raises OSError."""
    direct: int | None = None
    if has_direct():
        with suppress(OSError):
            direct = open_past_cache(file, direct=True)
            stack.callback(os.close, direct)
    plain = open_past_cache(file, direct=False)
    stack.callback(os.close, plain)
    return _Reading(direct, plain)


def _pieces(reading: _Reading) -> Generator[int, None, None]:
    """Reads a file again and again, directly where the first read works so; the bytes of each read."""
    with mmap.mmap(-1, PIECE_BYTES) as buffer:
        descriptor = reading.plain
        if reading.direct is not None:
            with suppress(OSError):
                read_into(reading.direct, buffer, 0)
                descriptor = reading.direct
        while True:
            offset = 0
            if descriptor == reading.plain:
                drop_cached(descriptor, 0, 0)
            while count := read_into(descriptor, buffer, offset):
                yield count
                offset += count
