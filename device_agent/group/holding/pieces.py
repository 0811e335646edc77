"""What a member holds of each layer, cut so that it can compute its own share of it and the whole. Pure.

A member that has a whole layer to compute some rows of it, and a shard of the same layer to compute steps of few rows,
holds it as *pieces*: its shard, and what is before and behind that. The outputs of pieces are partial sums, like those
of shards, so nothing is held twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_agent.group.holding.halves import halves_of, readers_of
from device_agent.planning.plan import Hybrid, Layer, Lent, Sharded, Whole
from device_agent.planning.shares import spans
from split_model.slices import Slice, held_bytes
from split_model.spec import ModelSpec


@dataclass(frozen=True)
class LayerPiece:
    """Some KV groups and some columns of the MLP of one layer.

    Attributes:
        own: whether this is the member's part of a step of few rows, or of what it computes for itself.
        weights: whether the member has the weights; else it only attends, for another that has them.
        keeps: whether the member has the keys and values of sessions; else whom it lends the groups to has them.
    """

    groups: range
    columns: range
    own: bool = True
    weights: bool = True
    keeps: bool = True


def pieces_of(layer: Layer, place: int, spec: ModelSpec) -> list[LayerPiece]:
    """Those of the member at ``place``, in the order of groups and columns; none where it has no part in the layer."""
    groups, columns = range(spec.num_kv_heads), range(spec.intermediate_size)
    if isinstance(layer, Whole):
        return [LayerPiece(groups, columns)] if layer.member == place else []
    if isinstance(layer, Sharded):
        return [_shard(layer, place)]
    if isinstance(layer, Hybrid):
        own = _shard(layer.step, place)
        return _around(own, range(0), columns) if layer.mlp_by_rows else [own]
    if isinstance(layer, Lent):
        return _lent(layer, place)
    if isinstance(layer.step, Whole):
        return [LayerPiece(groups, columns)]
    return _around(_shard(layer.step, place), groups, columns)


def weight_bytes(layers: Sequence[Layer], first: int, place: int, spec: ModelSpec, dtype: str) -> int:
    """Bytes of the weights of the member at ``place``; ``layers`` are the model's from layer ``first`` on."""
    found = 0
    for half, numbers in halves_of(spec):
        held = (
            Slice(number - numbers.start, number - numbers.start + 1, piece.groups, piece.columns)
            for number, layer in enumerate(layers, first)
            if number in numbers
            for piece in pieces_of(layer, place, spec)
            if piece.weights
        )
        found += held_bytes(half, held, dtype)
    return found


def cache_bytes(layers: Sequence[Layer], place: int, spec: ModelSpec, positions: int, dtype_bytes: int) -> int:
    """Bytes of the keys and values of one session of so many positions. A decoder keeps as many again of the text that
    a session is about, and its encoder none; nor does any model whose rows see those behind them: it reads whole
    texts."""
    if spec.attention == "bidirectional":
        return 0
    keeping = layers[readers_of(spec) :]
    groups = sum(_kept_groups(layer, place, spec) for layer in keeping)
    times = 2 if spec.attention == "cross" else 1
    return times * 2 * groups * spec.head_dim * positions * dtype_bytes


def _kept_groups(layer: Layer, place: int, spec: ModelSpec) -> int:
    """Of how many groups of a layer the member at ``place`` keeps keys and values."""
    return sum(len(piece.groups) for piece in pieces_of(layer, place, spec) if piece.keeps)


def members_at_home(layer: Lent) -> list[int]:
    """Whose parts of a layer with lent attention are pieces at its home, in their order."""
    parts = zip(layer.groups, layer.columns, strict=True)
    return [
        member
        for member, (groups, columns) in enumerate(parts)
        if member == layer.home or groups or (columns and layer.copies)
    ]


def _lent(layer: Lent, place: int) -> list[LayerPiece]:
    """With projections lent all have shards. Else home has a piece for each whose heads it projects: also their
    columns, where it computes steps of few rows alone; and lenders have heads without weights, and columns."""
    own, columns = _shard(layer, place), spans(layer.columns)
    if layer.projections:
        return [own]
    if place == layer.home:
        return [
            LayerPiece(groups, columns[member] if layer.copies else range(0), own=False, keeps=layer.copies)
            if member != place
            else own
            for member, groups in enumerate(spans(layer.groups))
            if member in members_at_home(layer)
        ]
    attends = LayerPiece(own.groups, range(0), weights=False)
    computes = LayerPiece(range(0), own.columns, own=not own.groups)
    return [each for each in (attends, computes) if each.groups or each.columns]


def _shard(layer: Sharded | Hybrid | Lent, place: int) -> LayerPiece:
    return LayerPiece(spans(layer.groups)[place], spans(layer.columns)[place])


def _around(own: LayerPiece, groups: range, columns: range) -> list[LayerPiece]:
    """A member's own piece between those that make it whole; of ``groups`` none where only its own are wanted."""
    before = LayerPiece(groups[: own.groups.start], columns[: own.columns.start], own=False)
    behind = LayerPiece(groups[own.groups.stop :], columns[own.columns.stop :], own=False)
    return [each for each in (before, own, behind) if each.own or each.groups or each.columns]
