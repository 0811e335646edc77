"""What reads past the page cache need of the system, as far as it has it.

Linux has direct reads and can drop what it has cached. macOS has neither; it can be told to cache nothing of a file
(`F_NOCACHE`). Where there is nothing of the kind a file is read as any other.
"""

from __future__ import annotations

import fcntl
import os
from mmap import mmap
from pathlib import Path


def has_direct() -> bool:
    """Whether a file can be opened for direct reads at all; its file system may still refuse them."""
    return hasattr(os, "O_DIRECT")


def open_past_cache(path: Path, direct: bool) -> int:
    """A descriptor for reading. direct: read straight into memory that is aligned. Raises OSError."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    if direct:
        return os.open(path, flags | getattr(os, "O_DIRECT", 0))
    descriptor = os.open(path, flags)
    if (no_cache := getattr(fcntl, "F_NOCACHE", None)) is not None:
        fcntl.fcntl(descriptor, no_cache, 1)
    return descriptor


def read_into(descriptor: int, into: memoryview | mmap, offset: int) -> int:
    """Reads from `offset` on, on one thread at a time, and lets go of the interpreter meanwhile; how many bytes came.

    Raises OSError.
    """
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [into], offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.readv(descriptor, [into])


def drop_cached(descriptor: int, offset: int, count: int) -> None:
    """Gives back what the system has cached of these bytes; count 0: up to the end. Raises OSError."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, count, os.POSIX_FADV_DONTNEED)


def take_room(descriptor: int, size: int) -> None:
    """Makes a file so long; on most file systems of Linux this takes the room now, instead of when all but the end is
    written. Raises OSError."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)
