"""How the matrices of a unit lie one after the other, in its file as in memory. Pure, and free of torch.

Each is as the product multiplies it: [out, in] row by row, or [in, out] where that is faster, and begins at a multiple
of `ALIGNMENT`, so that a disk can write straight to where it is multiplied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from split_model.offload.units import Unit
from split_model.slices import DTYPE_BYTES
from split_model.spec import ModelSpec
from split_model.weight_parts import WeightPart, layer_parts

ALIGNMENT = 4096
"""Of starts, lengths and memory; direct reads need 512 on most disks, and the larger blocks of some."""


@dataclass(frozen=True)
class Cut:
    """Which part of a layer: some KV groups and MLP columns, None for all of them.

    Attributes:
        apart: whether queries are a matrix of their own, see `Projection`.
    """

    kv_groups: range | None = None
    columns: range | None = None
    apart: bool = False


@dataclass(frozen=True)
class UnitMatrix:
    """One matrix of a unit.

    Attributes:
        parts: of the checkpoint, stacked by rows.
        start: its first byte, counted from the first one of the unit.
        nbytes: its own, without what is left out behind it.
        turned: whether it lies as [in, out].
    """

    parts: tuple[WeightPart, ...]
    start: int
    nbytes: int
    turned: bool

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in]."""
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def room(self) -> int:
        """Bytes up to where the next one may begin."""
        return padded(self.nbytes)


def unit_matrices(spec: ModelSpec, unit: Unit, cut: Cut, dtype: str, turned: bool) -> list[UnitMatrix]:
    """In the order of use. dtype: a name of DTYPE_BYTES. Raises KeyError for any other."""
    half, layer = half_of(spec, unit.layer)
    parts = layer_parts(half, layer, cut.kv_groups, cut.columns)
    start, found = 0, []
    for weights, _ in parts.stacked(unit.half, cut.apart):
        nbytes = DTYPE_BYTES[dtype] * sum(part.num_elements for part in weights)
        found.append(UnitMatrix(tuple(weights), start, nbytes, turned))
        start += padded(nbytes)
    return found


def half_of(spec: ModelSpec, layer: int) -> tuple[ModelSpec, int]:
    """Of a model that reads one text and writes another, which half has a layer, and its number there: an encoder's
    layers come before its decoder's. Other models have one half."""
    reader = spec.reader
    if reader is None or layer >= reader.num_layers:
        return spec, layer - spec.reader_layers
    return reader, layer


def unit_bytes(spec: ModelSpec, unit: Unit, cut: Cut, dtype: object) -> int:
    """What is read for a use of a unit, and what its buffers take. dtype: as of `slice_bytes`."""
    name = str(dtype).removeprefix("torch.")
    return sum(each.room for each in unit_matrices(spec, unit, cut, name, turned=False))


def some(part: WeightPart, of_inputs: bool, held: range) -> WeightPart:
    """Some outputs of a matrix [out, in], or some inputs: numbered within the part."""
    rows = of_inputs == part.turned
    whole = part.rows if rows else part.columns
    begin = 0 if whole is None else whole.start
    span = range(begin + held.start, begin + held.stop)
    return replace(part, rows=span) if rows else replace(part, columns=span)


def padded(nbytes: int) -> int:
    """Rounded up to a multiple of `ALIGNMENT`."""
    return math.ceil(nbytes / ALIGNMENT) * ALIGNMENT
