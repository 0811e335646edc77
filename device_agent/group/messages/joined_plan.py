"""A group's plan as its members are told it: typed, bounded, the same bytes for all."""

from __future__ import annotations

from dataclasses import astuple, replace
from itertools import groupby
from typing import Annotated, Literal, Union

import msgspec

from device_agent.planning.moves import Transfer
from device_agent.planning.plan import MOST_PIECES, ByRows, GroupPlan, Hybrid, Layer, Lent, Sharded, Whole
from device_agent.planning.shape import ModelShape
from split_model.offload.units import HALVES, Unit
from split_model.spec import ModelSpec

_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**24)]
_Numbers = Annotated[tuple[_Number, ...], msgspec.Meta(max_length=64)]
_Shares = Annotated[tuple[Annotated[float, msgspec.Meta(ge=0, le=1e12)], ...], msgspec.Meta(max_length=64)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
_Unit = Annotated[int, msgspec.Meta(ge=0, lt=2 * 2**24)]
"""Twice the layer, and one more for its second half."""
_Units = Annotated[tuple[_Unit, ...], msgspec.Meta(max_length=8192)]
_Name = Annotated[str, msgspec.Meta(max_length=256)]


class _Form(msgspec.Struct, frozen=True, array_like=True, tag_field="form", forbid_unknown_fields=True):
    """Base of the ways to compute a layer; fields as those of their namesakes in the plan."""


class _Whole(_Form, frozen=True, tag=0):
    member: _Number


class _Tensor(_Form, frozen=True, tag=1):
    groups: _Numbers
    columns: _Numbers


class _Hybrid(_Form, frozen=True, tag=2):
    groups: _Numbers
    columns: _Numbers
    rows: _Shares
    mlp_by_rows: bool
    overlap: bool
    few_rows: _Number


class _Rows(_Form, frozen=True, tag=3):
    rows: _Shares
    step: Union[_Tensor, _Whole]
    keys_values: bool
    prefix: bool
    overlap: bool
    few_rows: _Number
    reordered: Annotated[tuple[bool, ...], msgspec.Meta(max_length=64)]
    pieces: Annotated[int, msgspec.Meta(ge=1, le=MOST_PIECES)]


class _Lent(_Form, frozen=True, tag=4):
    home: _Number
    groups: _Numbers
    columns: _Numbers
    projections: bool
    few_rows: _Number


_AnyForm = Union[_Whole, _Tensor, _Hybrid, _Rows, _Lent]


class _Alike(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Layers one behind the other that are computed alike."""

    count: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    form: _AnyForm


class _Transfer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Fields as those of its namesake in the plan."""

    target: _Number
    bytes_s: Annotated[float, msgspec.Meta(gt=0, le=1e12)]
    rtt_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)]
    uncovered_s: Annotated[
        tuple[Annotated[float, msgspec.Meta(ge=0, le=1e12)], ...], msgspec.Meta(min_length=1, max_length=256)
    ]
    fetches: bool


class JoinedPlan(msgspec.Struct, frozen=True, tag="work", forbid_unknown_fields=True):
    """What every member is told.

    Attributes:
        digest: what its checkpoint must be, see ``split_model.hub.identity``.
        dtype: of weights and rows.
        first_layer: of the model, the first that the group computes.
        ranks: of the members that compute, by their place in the plan; the portal has rank 0.
        alike: the layers' forms.
        positions: for how many of one session each member must have room before it loads.
        streamed: of each member, units as ``Unit``s are in the plan.
        mode, names, one_shot_bytes, ring_bytes, micro_batches, prefetch, cache_bytes, coded, transfers: see
            ``GroupPlan``.
    """

    digest: _Name
    dtype: Literal["float32", "bfloat16", "float16"]
    first_layer: _Number
    ranks: _Numbers
    alike: Annotated[tuple[_Alike, ...], msgspec.Meta(max_length=1024)]
    positions: _Number
    mode: _Name
    names: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=64)]
    one_shot_bytes: _Bytes
    streamed: Annotated[tuple[_Units, ...], msgspec.Meta(max_length=64)] = ()
    ring_bytes: Annotated[tuple[_Bytes, ...], msgspec.Meta(max_length=64)] = ()
    micro_batches: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    prefetch: bool = True
    cache_bytes: Annotated[tuple[_Bytes, ...], msgspec.Meta(max_length=64)] = ()
    coded: Annotated[tuple[bool, ...], msgspec.Meta(max_length=64)] = ()
    transfers: Annotated[tuple[_Transfer | None, ...], msgspec.Meta(max_length=64)] = ()

    @classmethod
    def of(
        cls, plan: GroupPlan, digest: str, dtype: Literal["float32", "bfloat16", "float16"], first: int, positions: int
    ) -> JoinedPlan:
        """A plan for the layers from ``first`` on; ranks are given in the order of the members, the portal has 0."""
        others = iter(range(1, len(plan.members) + 1))
        ranks = tuple(0 if name == plan.portal else next(others) for name in plan.members)
        alike = tuple(_Alike(len(list(same)), _form(layer)) for layer, same in groupby(plan.layers))
        return cls(
            digest,
            dtype,
            first,
            ranks,
            alike,
            positions,
            plan.mode,
            plan.members,
            plan.one_shot_bytes,
            tuple(tuple(2 * unit.layer + HALVES.index(unit.half) for unit in units) for units in plan.streamed),
            plan.ring_bytes,
            plan.micro_batches,
            plan.prefetch,
            plan.cache_bytes,
            plan.coded,
            tuple(None if each is None else _Transfer(*astuple(each)) for each in plan.transfers),
        )

    def written(self) -> bytes:
        """As ``read`` takes it."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def read(cls, data: bytes) -> JoinedPlan:
        """Raises ``ValueError`` for anything else."""
        return msgspec.msgpack.decode(data, type=cls)

    @property
    def seats(self) -> dict[int, str]:
        """The names of the members beside the portal, by rank."""
        return {rank: name for rank, name in zip(self.ranks, self.names, strict=True) if rank}

    def as_planned(self, portal: str) -> GroupPlan:
        """What it was made ``of``, where that has nothing that members need not be told. It is not checked."""
        return GroupPlan(
            self.mode,
            self.names,
            portal,
            tuple(layer for each in self.alike for layer in [_layer(each.form)] * each.count),
            one_shot_bytes=self.one_shot_bytes,
            streamed=tuple(tuple(Unit(each // 2, HALVES[each % 2]) for each in units) for units in self.streamed),
            ring_bytes=self.ring_bytes,
            micro_batches=self.micro_batches,
            prefetch=self.prefetch,
            cache_bytes=self.cache_bytes,
            coded=self.coded,
            transfers=tuple(
                None if each is None else Transfer(*msgspec.structs.astuple(each)) for each in self.transfers
            ),
        )

    def plan(self, spec: ModelSpec) -> GroupPlan:
        """What was planned, but for the portal's name, once it is found to be for this model. Raises ``ValueError``."""
        shape, last = ModelShape.of(spec), self.first_layer + sum(each.count for each in self.alike)
        if last > shape.layers:
            raise ValueError(f"the plan has more layers than the model's {shape.layers}")
        if spec.reader is not None and (self.first_layer, last) != (0, shape.layers):
            raise ValueError(f"a group has both halves of a {spec.model_type} model, all layers of them")
        if spec.reader is not None and (self.cache_bytes or self.micro_batches > 1):
            raise ValueError("of an encoder and its decoder no more is streamed later, and no step is cut")
        if len(set(self.ranks)) != len(self.names) or max(self.ranks, default=0) > len(self.names):
            raise ValueError(f"{len(self.names)} members have the ranks {list(self.ranks)}")
        plan = self.as_planned("")
        plan.check(replace(shape, layers=len(plan.layers)))
        if spec.positions == "relative" and any(
            isinstance(each, ByRows) and any(each.reordered) for each in plan.layers
        ):
            raise ValueError("in Eq. 8's order nothing is added to scores")
        return plan

    def layers(self, spec: ModelSpec) -> tuple[Layer, ...]:
        """The group's layers, as ``plan`` has them. Raises ``ValueError``."""
        return self.plan(spec).layers


def _form(layer: Layer) -> _AnyForm:
    if isinstance(layer, Whole):
        return _Whole(layer.member)
    if isinstance(layer, Sharded):
        return _Tensor(layer.groups, layer.columns)
    if isinstance(layer, Hybrid):
        return _Hybrid(layer.groups, layer.columns, layer.rows, layer.mlp_by_rows, layer.overlap, layer.few_rows)
    if isinstance(layer, Lent):
        return _Lent(layer.home, layer.groups, layer.columns, layer.projections, layer.few_rows)
    step = _form(layer.step)
    assert isinstance(step, (_Whole, _Tensor))
    kinds = layer.keys_values, layer.prefix, layer.overlap
    return _Rows(layer.rows, step, *kinds, layer.few_rows, layer.reordered, layer.pieces)


def _layer(form: _AnyForm) -> Layer:
    if isinstance(form, _Whole):
        return Whole(form.member)
    if isinstance(form, _Tensor):
        return Sharded(form.groups, form.columns)
    if isinstance(form, _Hybrid):
        return Hybrid(form.groups, form.columns, form.rows, form.mlp_by_rows, form.overlap, form.few_rows)
    if isinstance(form, _Lent):
        return Lent(form.home, form.groups, form.columns, form.projections, form.few_rows)
    step = _layer(form.step)
    assert isinstance(step, (Whole, Sharded))
    kinds = form.keys_values, form.prefix, form.reordered, form.overlap
    return ByRows(form.rows, step, *kinds, form.few_rows, form.pieces)
