"""The units of a checkpoint on the disk, repacked so that they can be read straight into the memory they are used in.

Each unit has a file, made when it is first wanted: another plan, with other units, makes only what is new to it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from split_model.cache_folder import cache_folder
from split_model.checkpoint import Checkpoint
from split_model.hub import identity
from split_model.matrix import lies_turned
from split_model.offload.disk_calls import drop_cached, has_direct, open_past_cache, read_into
from split_model.offload.errors import DiskFull, ReadFailed
from split_model.offload.file_pieces import FORM, MOST_CODED_PIECES, Piece, codable, coded_spans, most_share
from split_model.offload.folders import Hold, make_room, making
from split_model.offload.layout import ALIGNMENT, Cut, UnitMatrix, unit_matrices
from split_model.offload.unit_file import HEAD_BYTES, file_bytes, head, sound_pieces, write
from split_model.offload.units import Unit

UNITS: Final = "units"
"""Of Trilby's own folders, the one with the files."""


Progress = Callable[[int, int], object]
"""Called with how many bytes are repacked, of how many."""

CutOf = Callable[[int], Cut]
"""Which part of a layer."""


@dataclass(frozen=True)
class _Stored:
    path: Path
    said: dict[str, object]
    matrices: list[UnitMatrix]
    in_code: bool


class UnitStore:
    """Units of one checkpoint, dtype and cut, in one form. `make` on any thread, reading on one.

    Attributes:
        coded: whether files have fewer bytes than memory, see `coding`, as far as they can.
        direct: whether reads go past the page cache; where the file system refuses, what was read is dropped from it.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        cut: CutOf,
        device: torch.device | str = "cpu",
        folder: Path | None = None,
        coded: bool = False,
    ) -> None:
        """folder: where the files are, `~/.cache/trilby/units` where nothing is said."""
        self.coded = coded and codable(checkpoint.spec, str(dtype).removeprefix("torch."))
        self.direct = has_direct()
        self._checkpoint, self._dtype, self._cut = checkpoint, dtype, cut
        self._turned = lies_turned(dtype, device)
        self._digest = identity(checkpoint)
        digest = hashlib.sha256(self._digest.encode()).hexdigest()[:24]
        self._folder = (cache_folder(UNITS) if folder is None else folder) / f"{digest}-{self._dtype_name}"
        self._stored: dict[Unit, _Stored] = {}
        self._pieces: dict[Unit, list[Piece]] = {}
        self._open: dict[Unit, int] = {}
        self._hold: Hold | None = None

    @property
    def reader_layers(self) -> int:
        """See `ModelSpec`."""
        return self._checkpoint.spec.reader_layers

    @property
    def _dtype_name(self) -> str:
        return str(self._dtype).removeprefix("torch.")

    def matrices(self, unit: Unit) -> list[UnitMatrix]:
        """What a unit consists of."""
        return self._of(unit).matrices

    def make(self, units: Iterable[Unit], progress: Progress | None = None) -> None:
        """Makes the files that are missing or unsound; long where they are many. Other models' may go for them. From
        now on nobody removes these, until this is closed or forgotten.

        progress: called also while another process makes some. Raises DiskFull, with nothing left of what was made now;
        BadCheckpoint; FolderBusy; ReadFailed where the folder cannot be used.
        """
        wanted = list(dict.fromkeys(units))
        if not wanted:
            return
        told = progress or (lambda done, of: None)
        try:
            if self._hold is None:
                self._hold = Hold(self._folder)
            if missing := self._missing(wanted):
                with making(self._folder, lambda: told(0, self._bytes_of(missing))):
                    self._make(self._missing(missing), told)
        except OSError as error:
            self._let_go()
            raise ReadFailed(wanted[0], self._folder, f"it cannot be written: {error}") from error
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        """Of the folder, where nothing of it is open."""
        if not self._open:
            hold, self._hold = self._hold, None
            if hold is not None:
                hold.close()

    def _make(self, missing: list[Unit], told: Progress) -> None:
        done, total = 0, self._bytes_of(missing)
        self._make_room(missing)

        def written(more: int) -> None:
            nonlocal done
            done += more
            told(done, total)

        made: list[Unit] = []
        try:
            for unit in missing:
                of = self._of(unit)
                made.append(unit)
                self._pieces[unit] = write(
                    of.path, of.said, self._checkpoint, of.matrices, self._dtype, written, of.in_code
                )
        except DiskFull:
            for unit in made:
                with suppress(OSError):
                    self._of(unit).path.unlink()
            raise

    def check_room(self, units: Iterable[Unit]) -> None:
        """Raises DiskFull where the missing files of these units have no room, and ReadFailed where the folder cannot
        be used. Other models' files may go for them."""
        if missing := self._missing(dict.fromkeys(units)):
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._make_room(missing)
            except OSError as error:
                raise ReadFailed(missing[0], self._folder, f"it cannot be written: {error}") from error

    def _make_room(self, missing: Sequence[Unit]) -> None:
        share = most_share(self._dtype == torch.float32) if self.coded else 1.0
        total = sum(int(file_bytes(of.matrices) * (share if of.in_code else 1.0)) for of in map(self._of, missing))
        make_room(self._folder, total)
        free = os.statvfs(self._folder)
        lacking = total - free.f_bavail * free.f_frsize
        if lacking > 0:
            raise DiskFull(self._folder, lacking)

    def _missing(self, units: Iterable[Unit]) -> list[Unit]:
        return [unit for unit in units if not self._is_there(unit)]

    def _bytes_of(self, units: Iterable[Unit]) -> int:
        return sum(file_bytes(self._of(unit).matrices) for unit in units)

    def read(self, unit: Unit, offset: int, into: memoryview, progress: Progress | None = None) -> None:
        """Up to `PIECE_BYTES` of a unit from `offset` on. Offset, length and memory lie at multiples of `ALIGNMENT`.

        progress: of making the file anew, where it is gone. Raises ReadFailed, and as `make`.
        """
        path, done = self._of(unit).path, 0
        try:
            self._opened(unit, progress)
            while done < len(into):
                count = self._read(unit, HEAD_BYTES + offset + done, into[done:])
                done += count
                if not count or (done < len(into) and count % ALIGNMENT):
                    raise ReadFailed(unit, path, f"the file ends at byte {HEAD_BYTES + offset + done}")
        except OSError as error:
            self.forget(unit)
            raise ReadFailed(unit, path, str(error.strerror)) from error
        except ReadFailed:
            self.forget(unit)
            raise

    def pieces(self, unit: Unit, progress: Progress | None = None) -> list[Piece]:
        """What a unit's file consists of, in its order. As `read`."""
        try:
            self._opened(unit, progress)
        except OSError as error:
            raise ReadFailed(unit, self.path(unit), str(error.strerror)) from error
        return self._pieces[unit]

    def discard(self, unit: Unit) -> None:
        """A unit's file is unsound within; the next read makes it anew."""
        self.forget(unit)
        with suppress(OSError):
            self.path(unit).unlink()

    def path(self, unit: Unit) -> Path:
        """Of its file."""
        return self._of(unit).path

    def forget(self, unit: Unit) -> None:
        """Closes a unit's file; the next read looks whether it is sound, and makes it anew where it is not."""
        descriptor = self._open.pop(unit, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Closes all of them, which may be removed now; another read opens or makes them again."""
        self._close_files()
        self._let_go()

    def _close_files(self) -> None:
        for unit in list(self._open):
            self.forget(unit)

    def _of(self, unit: Unit) -> _Stored:
        found = self._stored.get(unit)
        if found is None:
            cut = self._cut(unit.layer)
            matrices = unit_matrices(self._checkpoint.spec, unit, cut, self._dtype_name, self._turned)
            held = [None if each is None else [each.start, each.stop] for each in (cut.kv_groups, cut.columns)]
            of = {
                "digest": self._digest,
                "dtype": self._dtype_name,
                "unit": [unit.layer, unit.half],
                "cut": [*held, cut.apart],
                "turned": self._turned,
            }
            in_code = self.coded and len(coded_spans(matrices)) <= MOST_CODED_PIECES
            said = head(of | {"form": FORM} if in_code else of, matrices)
            name = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
            path = self._folder / f"{unit.layer}-{unit.half}-{name}.unit"
            found = self._stored[unit] = _Stored(path, said, matrices, in_code)
        return found

    def _is_there(self, unit: Unit) -> bool:
        of = self._of(unit)
        try:
            descriptor = os.open(of.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            pieces = sound_pieces(descriptor, of.said, of.matrices, of.in_code, self._dtype == torch.float32)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        if pieces is None:
            return False
        self._pieces[unit] = pieces
        return True

    def _opened(self, unit: Unit, progress: Progress | None) -> None:
        if unit not in self._open:
            self.make([unit], progress)
            self._open_file(unit)

    def _open_file(self, unit: Unit) -> None:
        path = self._of(unit).path
        try:
            self._open[unit] = open_past_cache(path, self.direct)
        except OSError as error:
            if error.errno != errno.EINVAL or not self.direct:
                raise
            self.direct = False
            self._open[unit] = open_past_cache(path, False)

    def _read(self, unit: Unit, offset: int, into: memoryview) -> int:
        try:
            count = read_into(self._open[unit], into, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not self.direct:
                raise
            # Some file systems open a file so and refuse to read it so.
            self.direct = False
            self._close_files()
            self._open_file(unit)
            count = read_into(self._open[unit], into, offset)
        if not self.direct:
            drop_cached(self._open[unit], offset, count)
        return count
