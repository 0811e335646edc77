"""Reads one `.safetensors` file: its header with suspicion, its tensors straight into memory that is there already.

The file is never mapped: a mapped page counts as ours until the kernel takes it back, and a device with
little memory must not hold more than the slice it runs. Layout: eight bytes of header length (little
endian), that many bytes of JSON, then the tensors' bytes, without gaps.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from split_model.errors import BadCheckpoint

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_DIMENSIONS = 8
BLOCK_BYTES = 4 << 20  # of a tensor that must be converted or goes to another device, what is in memory twice

READABLE = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_ELEMENT_BYTES = {
    **{"F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2},
    **{"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1},
}


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies: `start` counts bytes from the beginning of the file."""

    dtype: str  # as the format names it: "F32", "BF16", ...
    shape: tuple[int, ...]
    start: int
    num_bytes: int


class SafetensorsFile:
    """The tensors of one file. Construction reads the header only; BadCheckpoint where it is not sound, and from then
    on where the file has been replaced or written to: what was read of it belongs to no other weights."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb", buffering=0) as file:
                self._known = _state(file)
                size = self._known[1]
                length = int.from_bytes(file.read(8), "little")
                if size < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                    raise self._bad(f"its header length {length} does not fit a file of {size} bytes")
                header = bytearray(length)
                _read_exactly(file, memoryview(header), 8)
        except (OSError, EOFError) as error:
            raise self._bad(str(error)) from error
        self.entries: Mapping[str, TensorEntry] = self._parse(bytes(header), 8 + length, size)

    def read_into(self, name: str, out: torch.Tensor, rows: range | None, columns: range | None) -> None:
        """Fills `out` [rows, columns] (or [rows]), of any float dtype, stride and device, block by block.

        Of a tensor of more dimensions, columns count all behind the first.

        Raises BadCheckpoint for a missing or unreadable tensor, ValueError for a range outside of it.
        """
        entry = self.entry(name)
        if entry.dtype not in READABLE:
            raise self._bad(f"tensor {name} has dtype {entry.dtype}; only {', '.join(READABLE)} can be read")
        if not entry.shape:
            raise self._bad(f"tensor {name} is a single number; only vectors and matrices can be read")
        height, width = entry.shape[0], math.prod(entry.shape[1:])
        rows = _within(rows, height, f"rows of {name}")
        columns = _within(columns, width, f"columns of {name}")
        target = out if out.dim() == 2 else out.unsqueeze(1)
        if target.shape != (len(rows), len(columns)):
            raise ValueError(f"{name}: a tensor of shape {tuple(out.shape)} cannot take {len(rows)} x {len(columns)}")
        if not target.numel():
            return

        dtype = READABLE[entry.dtype]
        row_bytes = len(columns) * dtype.itemsize
        block_rows = min(len(rows), max(1, BLOCK_BYTES // row_bytes))
        direct = out.dtype == dtype and target.is_contiguous() and out.device.type == "cpu"
        staging = None if direct else _staging(block_rows * row_bytes).view(dtype).view(block_rows, len(columns))
        with self._open() as file:
            for first in range(0, len(rows), block_rows):
                part = target[first : first + block_rows]
                block = part if staging is None else staging[: len(part)]
                buffer = block.reshape(-1).view(torch.uint8).numpy().data
                if len(columns) == width:
                    pieces = [(buffer, rows[first] * row_bytes)]
                else:
                    pieces = [
                        (
                            buffer[row * row_bytes : (row + 1) * row_bytes],
                            (rows[first + row] * width + columns[0]) * dtype.itemsize,
                        )
                        for row in range(len(part))
                    ]
                for piece, offset in pieces:
                    self._fill(file, piece, entry.start + offset)
                if staging is not None:
                    part.copy_(block)

    def sample(self, name: str, window_bytes: int, num_windows: int) -> bytes:
        """`num_windows` evenly spaced windows of a tensor's bytes, first and last included; all, if it is short."""
        entry = self.entry(name)
        if entry.num_bytes <= window_bytes * num_windows:
            windows = [(0, entry.num_bytes)]
        else:
            last = entry.num_bytes - window_bytes
            windows = [(last * index // (num_windows - 1), window_bytes) for index in range(num_windows)]
        sampled = bytearray(sum(length for _, length in windows))
        at = 0
        with self._open() as file:
            for offset, length in windows:
                self._fill(file, memoryview(sampled)[at : at + length], entry.start + offset)
                at += length
        return bytes(sampled)

    def entry(self, name: str) -> TensorEntry:
        """Raises BadCheckpoint where the file has no such tensor."""
        if name not in self.entries:
            raise self._bad(f"it has no tensor {name}")
        return self.entries[name]

    def _parse(self, header: bytes, data_start: int, size: int) -> dict[str, TensorEntry]:
        try:
            found = json.loads(header.decode("utf-8"), object_pairs_hook=_no_duplicates)
        except (ValueError, RecursionError) as error:
            raise self._bad(f"its header is no sound JSON: {error}") from error
        if not isinstance(found, dict):
            raise self._bad("its header is no JSON object")
        found.pop("__metadata__", None)
        entries = {name: self._entry(name, fields, data_start) for name, fields in found.items()}
        end = data_start
        for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.num_bytes)):
            if entry.start != end:
                raise self._bad("its tensors overlap or leave gaps")
            end += entry.num_bytes
        if end != size:
            raise self._bad(f"its tensors end at byte {end}, but the file has {size} bytes")
        return entries

    def _entry(self, name: str, fields: Any, data_start: int) -> TensorEntry:
        if not isinstance(fields, dict) or fields.keys() != {"dtype", "shape", "data_offsets"}:
            raise self._bad(f"tensor {name!r} is not described by dtype, shape and data_offsets")
        dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _ELEMENT_BYTES:
            raise self._bad(f"tensor {name!r} has the unknown dtype {dtype!r}")
        if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
            raise self._bad(f"tensor {name!r} has the impossible shape {shape!r}")
        if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise self._bad(f"tensor {name!r} has the impossible data_offsets {offsets!r}")
        num_bytes = offsets[1] - offsets[0]
        if math.prod(shape) * _ELEMENT_BYTES[dtype] != num_bytes:
            raise self._bad(f"tensor {name!r}: {num_bytes} bytes are not what {dtype} {shape} takes")
        return TensorEntry(dtype, tuple(shape), data_start + offsets[0], num_bytes)

    def _open(self) -> FileIO:
        try:
            file = FileIO(self.path)
        except OSError as error:
            raise self._bad(str(error)) from error
        if _state(file) == self._known:
            return file
        file.close()
        raise BadCheckpoint(f"{self.path} has changed while it was in use: start again with the weights that are there")

    def _fill(self, file: FileIO, buffer: memoryview, offset: int) -> None:
        try:
            _read_exactly(file, buffer, offset)
        except (OSError, EOFError) as error:
            raise self._bad(str(error)) from error

    def _bad(self, reason: str) -> BadCheckpoint:
        return BadCheckpoint(f"{self.path} cannot be used: {reason}. Fetch the file again")


def _state(file: FileIO) -> tuple[int, int, int]:
    """What differs where a file is another, or was written to."""
    found = os.fstat(file.fileno())
    return found.st_ino, found.st_size, found.st_mtime_ns


def _staging(size: int) -> torch.Tensor:
    """Bytes in a mapping of their own, uint8 [size]: between the weights on the heap they would leave holes."""
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)


def _read_exactly(file: FileIO, buffer: memoryview, offset: int) -> None:
    """Raises EOFError where the file ends too early. One call to the kernel may give less than asked for."""
    file.seek(offset)
    done = 0
    while done < len(buffer):
        count = file.readinto(buffer[done:])
        if not count:
            raise EOFError("the file has become shorter while it was read")
        done += count


def _within(asked: range | None, size: int, what: str) -> range:
    if asked is None:
        return range(size)
    if asked.step != 1 or not 0 <= asked.start <= asked.stop <= size:
        raise ValueError(f"{what}: {asked} does not lie in 0 to {size}")
    return asked


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 48 for value in values)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found
