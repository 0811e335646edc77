"""Cuts of a model: by layers, by KV groups and MLP columns, with or without the embedding and the head.

Pure functions over a ModelSpec, free of torch, so that planners can count bytes without loading it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from split_model.end_parts import embedding_parts, end_parts, entry_parts
from split_model.spec import ModelSpec
from split_model.weight_parts import WeightPart, layer_parts, relative_part

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Slice:
    """What one process holds: layers `first_layer` up to, not including, `last_layer`, whole or sharded.

    `kv_groups` and `columns` (step 1, possibly empty) cut every layer of the slice: one shard of a
    tensor-parallel group. `None` is all of them. Raises ValueError where a bound makes no sense.
    """

    first_layer: int
    last_layer: int
    kv_groups: range | None = None
    columns: range | None = None
    embedding: bool = False
    head: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.first_layer <= self.last_layer:
            raise ValueError(f"layers {self.first_layer} to {self.last_layer} are no range of layers")
        for name, held in (("kv_groups", self.kv_groups), ("columns", self.columns)):
            if held is not None and (held.step != 1 or not 0 <= held.start <= held.stop):
                raise ValueError(f"{name} is {held}; it must be a range with step 1 from 0 or more")

    @property
    def num_layers(self) -> int:
        return self.last_layer - self.first_layer

    @property
    def is_first(self) -> bool:
        """Whether the model's first layer is here, and with it what is done to rows before it."""
        return self.first_layer == 0 < self.last_layer

    @property
    def is_shard(self) -> bool:
        """Whether the layers are cut across, so that their outputs are partial sums."""
        return self.kv_groups is not None or self.columns is not None

    def check(self, spec: ModelSpec) -> None:
        """Raises ValueError where the slice reaches past the model."""
        if self.last_layer > spec.num_layers:
            raise ValueError(f"layer {self.last_layer - 1} is asked for, but the model has {spec.num_layers} layers")
        if self.kv_groups is not None and self.kv_groups.stop > spec.num_kv_heads:
            raise ValueError(f"kv_groups is {self.kv_groups}, but the model has {spec.num_kv_heads} KV heads")
        if self.columns is not None and self.columns.stop > spec.intermediate_size:
            raise ValueError(f"columns is {self.columns}, but the MLP has {spec.intermediate_size} columns")


def whole(spec: ModelSpec) -> Slice:
    """The whole model."""
    return Slice(0, spec.num_layers, embedding=True, head=True)


def input_slice(spec: ModelSpec, m: int) -> Slice:
    """The embedding and the first `m` layers. Raises ValueError unless 0 <= m <= layers."""
    _check_cut(spec, m, 0)
    return Slice(0, m, embedding=True)


def middle_slice(spec: ModelSpec, m: int, k: int) -> Slice:
    """The layers between the first `m` and the last `k`. Raises ValueError unless m, k >= 0 and m + k <= layers."""
    _check_cut(spec, m, k)
    return Slice(m, spec.num_layers - k)


def output_slice(spec: ModelSpec, k: int) -> Slice:
    """The last `k` layers, the final norm and the head. Raises ValueError unless 0 <= k <= layers."""
    _check_cut(spec, 0, k)
    return Slice(spec.num_layers - k, spec.num_layers, head=True)


def shards(spec: ModelSpec, held: Slice, groups: Sequence[float], columns: Sequence[float]) -> list[Slice]:
    """A slice's layers cut across, one shard for each member of a group.

    groups, columns: each member's share of the KV groups and of the MLP's columns, in any unit: a member may have more
    of one than of the other, or none. Shares are rounded cumulatively to whole groups and columns, so that all are
    handed out. Raises ValueError for shares that are negative, all nought or not as many of one as of the other.
    """
    if len(groups) != len(columns):
        raise ValueError(f"{len(groups)} members have groups and {len(columns)} have columns")
    cut = zip(_parted(spec.num_kv_heads, groups), _parted(spec.intermediate_size, columns), strict=True)
    return [replace(held, kv_groups=of_heads, columns=of_mlp) for of_heads, of_mlp in cut]


def slice_parts(spec: ModelSpec, held: Slice) -> list[WeightPart]:
    """Every tensor part that a slice needs, each once. Raises ValueError where it reaches past the model."""
    return list(_distinct(spec, [held]))


def slice_bytes(spec: ModelSpec, held: Slice, dtype: object) -> int:
    """Bytes of a slice's weights in memory; a tied embedding and head count once if both are held.

    `dtype`: a name of DTYPE_BYTES or the torch dtype of that name; ValueError for any other.
    """
    return held_bytes(spec, [held], dtype)


def held_bytes(spec: ModelSpec, slices: Iterable[Slice], dtype: object) -> int:
    """Bytes of the weights of several slices in one process, what they share counted once."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise ValueError(f"dtype {name!r} is not one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[name] * sum(part.num_elements for part in _distinct(spec, slices))


def _parted(size: int, shares: Sequence[float]) -> list[range]:
    if not shares or min(shares) < 0 or not sum(shares) > 0:
        raise ValueError(f"{list(shares)} are no shares")
    ends = [round(size * end / sum(shares)) for end in accumulate(shares)]
    return [range(begin, end) for begin, end in pairwise([0, *ends[:-1], size])]


def _distinct(spec: ModelSpec, slices: Iterable[Slice]) -> dict[WeightPart, None]:
    parts: dict[WeightPart, None] = {}
    for held in slices:
        held.check(spec)
        if held.embedding:
            parts.update(dict.fromkeys(embedding_parts(spec).all()))
        if held.is_first:
            parts.update(dict.fromkeys(entry_parts(spec).all()))
        relative = relative_part(spec, held.kv_groups)
        if held.num_layers and relative is not None:
            parts[relative] = None
        for layer in range(held.first_layer, held.last_layer):
            parts.update(dict.fromkeys(layer_parts(spec, layer, held.kv_groups, held.columns).all()))
        if held.head:
            parts.update(dict.fromkeys(end_parts(spec)))
    return parts


def _check_cut(spec: ModelSpec, m: int, k: int) -> None:
    if m < 0 or k < 0 or m + k > spec.num_layers:
        raise ValueError(f"cannot cut {m} first and {k} last layers off a model of {spec.num_layers} layers")
