"""Folders of repacked units: who makes files in one is alone in it, who reads from one holds it, and one that nobody
holds goes when room is needed, the one not used for longest first."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from split_model.offload.errors import FolderBusy

MOST_BYTES: Final = 256 << 30
"""Of all folders together: a 70B model in bfloat16 takes 140 GB, and others stay beside it."""

LEAST_FREE: Final = 0.1
"""Of a disk: where less is left the folders of other models go first."""

SILENT_S: Final = 300.0
"""Another process that makes files and has written nothing for so long hangs. One file takes some 70 s to be brought
to a disk of 20 MB/s."""

REMOVED_WITHIN_S: Final = 5.0
"""Whoever removes a folder has it for a moment only."""

POLL_S: Final = 0.05
"""How often whoever waits for a folder looks."""

_NAME: Final = re.compile(r"[0-9a-f]{24}-[a-z0-9]+")
"""Of such a folder; nothing else is ever removed."""

_GONE: Final = ".gone"


class Hold:
    """A folder that nobody removes, from now until this is closed or forgotten. Any number may hold it."""

    def __init__(self, folder: Path) -> None:
        """Makes it where it is not there. Raises FolderBusy, OSError."""
        deadline = monotonic() + REMOVED_WITHIN_S
        while (descriptor := _held(folder)) is None:
            if monotonic() > deadline:
                raise FolderBusy(folder, REMOVED_WITHIN_S)
            sleep(POLL_S)
        self._folder = folder
        self._end = weakref.finalize(self, _let_go, descriptor, folder)
        _used_now(folder)

    def close(self) -> None:
        """Safe to call twice."""
        self._end()


@contextmanager
def making(folder: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Waits for whoever else makes files in a folder that is held, as long as something comes of it. What another left
    half-done when it was killed is removed.

    waiting: called again and again meanwhile; it may raise what ends the wait. Raises FolderBusy, OSError.
    """
    path = folder / ".lock"
    with open(path, "wb") as lock:
        seen, since = _written(folder), monotonic()
        while not _alone(lock.fileno()):
            waiting()
            if (now := _written(folder)) != seen:
                seen, since = now, monotonic()
            if monotonic() - since > SILENT_S:
                raise FolderBusy(path, SILENT_S)
            sleep(POLL_S)
        for left in folder.glob(".*.part"):
            with suppress(OSError):
                left.unlink()
        yield


def make_room(own: Path, more: int) -> None:
    """Removes folders beside `own`, so that so many bytes more fit both `MOST_BYTES` and the disk; none that is held.

    Raises OSError where the disk cannot be asked.
    """
    root = own.parent
    for left in root.glob(f".*{_GONE}"):  # Whoever removed it was killed.
        shutil.rmtree(left, ignore_errors=True)
    others = [each for each in root.iterdir() if each != own and _NAME.fullmatch(each.name)]
    sizes = {each: _size(each) for each in others}
    total = _size(own) + sum(sizes.values()) + more
    for other in sorted(others, key=_used_at):
        if total <= MOST_BYTES and _is_free(root, more):
            return
        if _removed(other):
            total -= sizes[other]


def _held(folder: Path) -> int | None:
    """The folder, which is made where it is not there, opened and locked; None where another is removing it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        held = _locked(descriptor, fcntl.LOCK_SH)
    except OSError:  # Where folders cannot be locked nobody can remove one either.
        held = True
    if held and _is_that(descriptor, folder):
        return descriptor
    os.close(descriptor)
    return None


def _is_free(root: Path, more: int) -> bool:
    disk = os.statvfs(root)
    return disk.f_bavail * disk.f_frsize - more >= LEAST_FREE * disk.f_blocks * disk.f_frsize


def _removed(folder: Path) -> bool:
    """Whether it was, since nobody holds it: under a name of its own first, so that who comes now makes another."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not (_locked(descriptor, fcntl.LOCK_EX) and _is_that(descriptor, folder)):
            return False
        gone = folder.with_name(f".{folder.name}-{os.getpid()}{_GONE}")
        os.rename(folder, gone)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    shutil.rmtree(gone, ignore_errors=True)
    return True


def _locked(descriptor: int, how: int) -> bool:
    """Whether it is locked now; a lock ends with its process. Raises OSError where there are no locks."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _alone(descriptor: int) -> bool:
    """Whether it is locked for this process alone, or the file system knows no locks."""
    try:
        return _locked(descriptor, fcntl.LOCK_EX)
    except OSError:
        return True


def _is_that(descriptor: int, folder: Path) -> bool:
    """Whether that is still the folder's name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except FileNotFoundError:
        return False


def _let_go(descriptor: int, folder: Path) -> None:
    _used_now(folder)
    os.close(descriptor)


def _used_now(folder: Path) -> None:
    with suppress(OSError):  # Somebody else's, which can be read.
        os.utime(folder)


def _used_at(folder: Path) -> float:
    with suppress(OSError):
        return folder.stat().st_mtime
    return 0.0


def _size(folder: Path) -> int:
    found = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                found += entry.stat(follow_symlinks=False).st_size
    return found


def _written(folder: Path) -> list[int]:
    """Changes as files come and grow."""
    found = [folder.stat().st_mtime_ns]
    for part in sorted(folder.glob(".*.part")):
        with suppress(OSError):
            found.append(part.stat().st_mtime_ns)
    return found
