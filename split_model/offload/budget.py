"""Which halves of a model's layers stay in memory, when there is too little for all of them. Pure.

The others are read from the disk at each use. How long a step takes is then how long their bytes take, or computing, if
that is longer: so as few bytes as can be are read, and those evenly between what stays, which is computed meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from split_model.offload.file_pieces import SCRATCH_BYTES, codable, most_share
from split_model.offload.layout import Cut, unit_matrices
from split_model.offload.units import HALVES, Half, Unit, spread
from split_model.slices import DTYPE_BYTES, slice_parts, whole
from split_model.spec import ModelSpec
from split_model.weight_parts import WeightPart

GROWS = 2
"""A cache of keys and values that grows is in memory twice while it is copied."""

FLOAT_BYTES = 4


class BudgetTooSmall(ValueError):
    """Not even a model of which all is read from the disk has room.

    Attributes:
        needed, budget: bytes.
    """

    def __init__(self, needed: int, budget: int) -> None:
        missing = f"{(needed - budget) / 1e6:.1f} more than the {budget / 1e6:.1f} given"
        super().__init__(f"{needed / 1e6:.1f} MB are needed at least, {missing}")
        self.needed, self.budget = needed, budget


@dataclass(frozen=True)
class Residence:
    """What is read from the disk, and what all takes.

    Attributes:
        streamed: in the order of use; () where all stays.
        ring_bytes: of the buffers that it is read into.
        needed: bytes of everything together.
        decodes: whether there is room to decode what lies coded on the disk.
    """

    streamed: tuple[Unit, ...]
    ring_bytes: int
    needed: int
    decodes: bool = False


def residence(
    spec: ModelSpec, dtype: str, budget: int, *, positions: int, rows: int, first_layer: int = 0
) -> Residence:
    """What of a whole model stays within `budget` bytes of weights, keys and values, and rows on their way.

    Embedding, head and norms stay, and all layers before `first_layer`, of an encoder and its decoder the decoder's.

    Args:
        dtype: a name of DTYPE_BYTES.
        positions: whose keys and values are kept; 0 for a model that reads whole texts.
        rows: most of one step.

    Raises:
        BudgetTooSmall: it says what is missing.
    """
    size = DTYPE_BYTES[dtype]
    kept = GROWS * 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * positions * size
    halves = [spec] if spec.reader is None else [spec.reader, spec]
    passing = max(_rows_bytes(half, rows, size) for half in halves)
    if spec.reader is not None:  # Keys and values of the text that is read, of which there are as many, once.
        kept += kept // GROWS
    everything = size * sum(part.num_elements for part in {part for half in halves for part in _parts(half)})
    fixed = everything + max(kept + passing, *(_largest_matrix(half, dtype) for half in halves))
    if fixed <= budget:
        return Residence((), 0, fixed)
    readers, last = spec.reader_layers, spec.reader_layers + spec.num_layers
    own = _Layers.of(spec, range(readers + first_layer, last), dtype)
    tries: list[tuple[_Layers, _Layers | None]] = [(own, None)]
    if readers:
        # An encoder is used once a text, its decoder once a token: of that only what the other is too little for.
        reader = _Layers.of(spec, range(readers), dtype)
        tries = [(reader, None), (own, reader)]
    plain, smallest = _first(tries, fixed, budget)
    if plain is None:
        raise BudgetTooSmall(smallest, budget)
    if codable(spec, dtype):
        # Coded it has fewer bytes, and there is less room for what stays.
        coded, _ = _first(tries, fixed + SCRATCH_BYTES, budget)
        share = most_share(dtype == "float32")
        if coded is not None and share * _read(spec, coded, dtype) < _read(spec, plain, dtype):
            return replace(coded, decodes=True)
    return plain


def _first(tries: Sequence[tuple[_Layers, _Layers | None]], fixed: int, budget: int) -> tuple[Residence | None, int]:
    """What the first of them that is enough gives, and the least bytes that any needs."""
    smallest = fixed
    for layers, beside in tries:
        best, least = _fewest_read(layers, beside, fixed, budget)
        smallest = min(smallest, least)
        if best is not None:
            return best, smallest
    return None, smallest


def _read(spec: ModelSpec, stays: Residence, dtype: str) -> int:
    return sum(_sizes(spec, unit, dtype).read for unit in stays.streamed)


@dataclass(frozen=True)
class _Layers:
    """Layers that are alike, numbered as units are, and the sizes of their halves."""

    layers: range
    of_half: Mapping[Half, UnitSizes]

    @classmethod
    def of(cls, spec: ModelSpec, layers: range, dtype: str) -> _Layers:
        last = layers.stop - 1
        return cls(layers, {half: _sizes(spec, Unit(last, half), dtype) for half in HALVES})


def _fewest_read(of: _Layers, beside: _Layers | None, fixed: int, budget: int) -> tuple[Residence | None, int]:
    """The way to stream some of these layers so that as little as can be is read; None where nothing is enough. And the
    least bytes that any way needs.

    beside: other layers, all of which are streamed. fixed: bytes that are needed if nothing is, but for the ring.
    """
    others = list(beside.of_half.values()) if beside is not None else []
    before = [] if beside is None else [Unit(layer, half) for layer in beside.layers for half in HALVES]
    fixed -= sum(len(before) // len(HALVES) * each.kept for each in others)
    best: Residence | None = None
    least_read, smallest = 0, fixed + ring_bytes(others)
    for attentions, mlps in product(range(len(of.layers) + 1), repeat=2):
        counts: dict[Half, int] = {"attention": attentions, "mlp": mlps}
        read = sum(count * of.of_half[half].read for half, count in counts.items())
        ring = ring_bytes([*others, *(of.of_half[half] for half, count in counts.items() if count)])
        needed = fixed + ring - sum(count * of.of_half[half].kept for half, count in counts.items())
        smallest = min(smallest, needed)
        if attentions + mlps and needed <= budget and (best is None or read < least_read):
            least_read = read
            units = [Unit(layer, half) for half, count in counts.items() for layer in spread(of.layers, count)]
            best = Residence(tuple(sorted([*before, *units])), ring, needed)
    return best, smallest


@dataclass(frozen=True)
class UnitSizes:
    """Bytes of a unit in memory, read for a use of it, and of the largest of its matrices when read."""

    kept: int
    read: int
    largest: int


def ring_bytes(units: Sequence[UnitSizes]) -> int:
    """Of a ring that always has room for two units of these kinds: one is used while the other is read.

    Units of one kind fill it without a gap; where kinds alternate one matrix may not fit before its end.
    """
    if not units:
        return 0
    gap = max(each.largest for each in units) if len(set(units)) > 1 else 0
    return 2 * max(each.read for each in units) + gap


def _parts(spec: ModelSpec) -> list[WeightPart]:
    return slice_parts(spec, whole(spec))


def _sizes(spec: ModelSpec, unit: Unit, dtype: str) -> UnitSizes:
    matrices = unit_matrices(spec, unit, Cut(), dtype, turned=False)
    rooms = [each.room for each in matrices]
    return UnitSizes(sum(each.nbytes for each in matrices), sum(rooms), max(rooms))


def _rows_bytes(spec: ModelSpec, rows: int, size: int) -> int:
    """Of one step: residual, its norm and its sum, queries, keys and values, scores of a long text, the MLP's width
    twice where it is gated, and one row's logits."""
    heads = (2 * spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    wide = (3 if spec.gated_mlp else 2) * spec.intermediate_size
    return rows * size * (4 * spec.hidden_size + max(2 * heads, wide)) + FLOAT_BYTES * spec.vocab_size * 4


def _largest_matrix(spec: ModelSpec, dtype: str) -> int:
    """While weights are loaded: a bfloat16 matrix is in memory twice while it is packed."""
    head = spec.vocab_size * (spec.embedding_size or spec.hidden_size)
    wide = (2 if spec.gated_mlp else 1) * spec.intermediate_size * spec.hidden_size
    return DTYPE_BYTES[dtype] * max(head, wide)
