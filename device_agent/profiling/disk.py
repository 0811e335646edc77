"""How fast this device reads weights from its disk, past the system's cache, as they are read while they are used."""

from __future__ import annotations

import mmap
import os
from collections.abc import Generator
from contextlib import suppress
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
    with NamedTemporaryFile(dir=folder, prefix="measured-") as file:
        some = os.urandom(PIECE_BYTES)
        for _ in range(PIECES):
            file.write(some)
        file.flush()
        os.fsync(file.fileno())
        pieces = _pieces(Path(file.name))
        next(pieces)
        began, total = perf_counter(), 0
        for count in pieces:
            total += count
            if perf_counter() - began >= SECONDS:
                break
        pieces.close()
        return total / max(perf_counter() - began, 1e-9)


def _pieces(file: Path) -> Generator[int, None, None]:
    """Reads a file again and again; the bytes of each read."""
    with mmap.mmap(-1, PIECE_BYTES) as buffer:
        descriptor, direct = _opened(file, buffer)
        try:
            while True:
                offset = 0
                if not direct:
                    drop_cached(descriptor, 0, 0)
                while count := read_into(descriptor, buffer, offset):
                    yield count
                    offset += count
        finally:
            os.close(descriptor)


def _opened(file: Path, buffer: mmap.mmap) -> tuple[int, bool]:
    """For direct reads where the first one works so."""
    if has_direct():
        with suppress(OSError):
            descriptor = open_past_cache(file, direct=True)
            try:
                read_into(descriptor, buffer, 0)
                return descriptor, True
            except OSError:
                os.close(descriptor)
    return open_past_cache(file, direct=False), False
