"""One unit's matrices in a file of their own, as they lie in memory, each where a disk can be read past the page cache.

A file is a head of `HEAD_BYTES`, JSON padded with blanks, and the matrices as `layout` has them, in the plain or coded
pieces of `pieces`. The head says all that was asked for, the lengths of coded pieces, and a hash over windows of what
was written: a file of something else, one that is too short, and one in which blocks were lost are known by it. It is
written beside, brought to the disk and renamed, so that under its name there is the whole file or none.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import torch

from split_model.checkpoint import Checkpoint
from split_model.errors import BadCheckpoint
from split_model.offload.disk_calls import drop_cached, take_room
from split_model.offload.errors import DiskFull
from split_model.offload.file_pieces import Piece, coded, coded_pieces, file_windows, places, plain
from split_model.offload.layout import ALIGNMENT, UnitMatrix, some

VERSION: Final = 1
"""Of the layout: files of another one are other files."""

HEAD_BYTES: Final = ALIGNMENT
PIECE_BYTES: Final = 8 << 20
"""Of a matrix that is in memory at once while files are made: a member makes some while it serves."""

SYNCED_BYTES: Final = 128 << 20
"""So many at once are brought to the disk: six seconds of a disk of 20 MB/s, in which nobody hears of it."""

WINDOW_BYTES: Final = 4096
"""From both ends of each matrix, for the hash."""

Written = Callable[[int], object]
"""Called with how many bytes more are on the disk."""


def head(of: dict[str, Any], matrices: Sequence[UnitMatrix]) -> dict[str, Any]:
    """What a file must say of itself but for its hash. of: what was asked for, as JSON has it."""
    lengths = [[each.start, each.nbytes, *each.shape] for each in matrices]
    return {"format": "trilby unit", "version": VERSION, "of": of, "matrices": lengths}


def file_bytes(matrices: Sequence[UnitMatrix]) -> int:
    """Of the whole file; of a coded one at most."""
    return HEAD_BYTES + sum(each.room for each in matrices)


def sound_pieces(
    descriptor: int, wanted: dict[str, Any], matrices: Sequence[UnitMatrix], in_code: bool, narrow: bool
) -> list[Piece] | None:
    """What an open file has, where it is the wanted one, and whole; else None. narrow: see `most_share`. Raises
    OSError."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        return None
    try:
        said = json.loads(os.pread(descriptor, HEAD_BYTES, 0))
    except (ValueError, RecursionError):
        return None
    lengths = said.get("pieces") if isinstance(said, dict) else None
    pieces = coded(matrices, lengths, _number(wanted), narrow) if in_code else plain(matrices)
    if pieces is None or found.st_size != HEAD_BYTES + sum(each.length for each in pieces):
        return None
    more = {"pieces": lengths} if in_code else {}
    return pieces if said == wanted | more | {"hash": _hashed(descriptor, matrices, pieces)} else None


def write(
    path: Path,
    wanted: dict[str, Any],
    checkpoint: Checkpoint,
    matrices: Sequence[UnitMatrix],
    dtype: torch.dtype,
    written: Written = lambda more: None,
    in_code: bool = False,
) -> list[Piece]:
    """Makes the file, of coded pieces or of plain ones, and says which; whoever reads an earlier one of that name goes
    on with it. Nothing is left of one that fails.

    Raises DiskFull, BadCheckpoint, OSError.
    """
    size, done, narrow = file_bytes(matrices), 0, dtype == torch.float32

    def told(more: int) -> None:
        nonlocal done
        if (done + more) // SYNCED_BYTES > done // SYNCED_BYTES:
            os.fsync(descriptor)
        done += more
        written(more)

    with _beside(path) as (descriptor, beside), _room(path, size):
        take_room(descriptor, size)
        at, lengths, place = HEAD_BYTES, [], places(_number(wanted))
        for matrix in matrices:
            os.lseek(descriptor, at, os.SEEK_SET)
            if in_code:
                pieces_of_it = coded_pieces(_pieces(checkpoint, matrix, dtype), matrix.room, place, narrow)
                for coded_piece in pieces_of_it:
                    _write_all(descriptor, memoryview(coded_piece))
                    told(len(coded_piece))
                    lengths.append(len(coded_piece))
                    at += len(coded_piece)
            else:
                for piece in _pieces(checkpoint, matrix, dtype):
                    _write_all(descriptor, piece)
                    told(len(piece))
                at += matrix.room
        os.ftruncate(descriptor, at)
        os.fsync(descriptor)
        pieces = coded(matrices, lengths, _number(wanted), narrow) if in_code else plain(matrices)
        assert pieces is not None
        more = {"pieces": lengths} if in_code else {}
        said = json.dumps(wanted | more | {"hash": _hashed(descriptor, matrices, pieces)}).encode()
        if len(said) > HEAD_BYTES:
            raise BadCheckpoint(f"{len(said)} bytes are too long a head for {path.name}; {HEAD_BYTES} are the most")
        os.pwrite(descriptor, said.ljust(HEAD_BYTES), 0)
        os.fsync(descriptor)
        drop_cached(descriptor, 0, 0)
        os.replace(beside, path)
        written(size - done)
        return pieces


@contextmanager
def _beside(path: Path) -> Iterator[tuple[int, str]]:
    """A new file that is gone afterwards, unless it was renamed."""
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        yield descriptor, beside
    finally:
        os.close(descriptor)
        with suppress(FileNotFoundError):
            os.unlink(beside)


@contextmanager
def _room(path: Path, size: int) -> Iterator[None]:
    free = os.statvfs(path.parent)
    missing = size - free.f_bavail * free.f_frsize
    if missing > 0:
        raise DiskFull(path, missing)
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(path, size) from error  # A quota, or somebody else has taken the room meanwhile.


def _pieces(checkpoint: Checkpoint, matrix: UnitMatrix, dtype: torch.dtype) -> Iterator[memoryview]:
    """A matrix's bytes as they lie in memory, from the first on."""
    outputs, inputs = matrix.shape
    lines, width = (inputs, outputs) if matrix.turned else (outputs, inputs)
    if not lines * width:
        return
    most = max(1, PIECE_BYTES // (width * dtype.itemsize))
    room = torch.empty((min(most, lines), width), dtype=dtype)
    for first in range(0, lines, most):
        held = range(first, min(first + most, lines))
        piece = room[: len(held)]
        ends = list(accumulate(part.shape[0] for part in matrix.parts))
        for part, end in zip(matrix.parts, ends, strict=True):
            begin = end - part.shape[0]
            if matrix.turned:
                checkpoint.read_into(some(part, True, held), piece[:, begin:end].t())
            elif mine := range(max(held.start, begin), min(held.stop, end)):
                of_part = range(mine.start - begin, mine.stop - begin)
                checkpoint.read_into(some(part, False, of_part), piece[mine.start - first : mine.stop - first])
        yield piece.view(-1).view(torch.uint8).numpy().data


def _write_all(descriptor: int, piece: memoryview) -> None:
    done = 0
    while done < len(piece):
        done += os.write(descriptor, piece[done:])


def _number(wanted: dict[str, Any]) -> int:
    """64 bits for what is asked for, by which pieces of other files are told."""
    return int.from_bytes(hashlib.sha256(json.dumps(wanted).encode()).digest()[:8], "little")


def _hashed(descriptor: int, matrices: Sequence[UnitMatrix], pieces: Sequence[Piece]) -> str:
    state = hashlib.sha256()
    for offset, length in file_windows(matrices, pieces, WINDOW_BYTES):
        state.update(os.pread(descriptor, length, HEAD_BYTES + offset))
    return state.hexdigest()
