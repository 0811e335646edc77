"""A group's plan as its members are told it: typed, bounded, the same bytes for all."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Annotated, Literal, Union

import msgspec

from device_agent.planning.plan import MOST_PIECES, ByRows, GroupPlan, Hybrid, Layer, Sharded, Whole
from device_agent.planning.shape import ModelShape
from split_model.spec import ModelSpec

_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**24)]
_Numbers = Annotated[tuple[_Number, ...], msgspec.Meta(max_length=64)]
_Shares = Annotated[tuple[Annotated[float, msgspec.Meta(ge=0, le=1e12)], ...], msgspec.Meta(max_length=64)]
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


class _Alike(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Layers one behind the other that are computed alike."""

    count: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    form: Union[_Whole, _Tensor, _Hybrid, _Rows]


class JoinedPlan(msgspec.Struct, frozen=True, tag="work", forbid_unknown_fields=True):
    """What every member is told.

    Attributes:
        digest: what its checkpoint must be, see ``split_model.hub.identity``.
        dtype: of weights and rows.
        first_layer: of the model, the first that the group computes.
        ranks: of the members that compute, by their place in the plan; the portal has rank 0.
        alike: the layers' forms.
        positions: for how many of one session each member must have room before it loads.
        mode, names, one_shot_bytes: see ``GroupPlan``.
    """

    digest: _Name
    dtype: Literal["float32", "bfloat16", "float16"]
    first_layer: _Number
    ranks: _Numbers
    alike: Annotated[tuple[_Alike, ...], msgspec.Meta(max_length=1024)]
    positions: _Number
    mode: _Name
    names: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=64)]
    one_shot_bytes: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]

    @classmethod
    def of(
        cls, plan: GroupPlan, digest: str, dtype: Literal["float32", "bfloat16", "float16"], first: int, positions: int
    ) -> JoinedPlan:
        """A plan for the layers from ``first`` on; ranks are given in the order of the members, the portal has 0."""
        others = iter(range(1, len(plan.members) + 1))
        ranks = tuple(0 if name == plan.portal else next(others) for name in plan.members)
        alike = tuple(_Alike(len(list(same)), _form(layer)) for layer, same in groupby(plan.layers))
        return cls(digest, dtype, first, ranks, alike, positions, plan.mode, plan.members, plan.one_shot_bytes)

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

    def layers(self, spec: ModelSpec) -> tuple[Layer, ...]:
        """The group's layers, once they are found to be this model's. Raises ``ValueError``."""
        if spec.attention == "cross" or spec.positions == "relative":
            raise ValueError(f"a group runs no {spec.model_type} models")
        if self.first_layer + sum(each.count for each in self.alike) > spec.num_layers:
            raise ValueError(f"the plan has more layers than the model's {spec.num_layers}")
        layers = tuple(layer for each in self.alike for layer in [_layer(each.form)] * each.count)
        if len(set(self.ranks)) != len(self.names) or max(self.ranks, default=0) > len(self.names):
            raise ValueError(f"{len(self.names)} members have the ranks {list(self.ranks)}")
        GroupPlan(self.mode, self.names, "", layers).check(
            replace(ModelShape.of(spec), layers=len(layers), cross_layers=0)
        )
        return layers


def _form(layer: Layer) -> _Whole | _Tensor | _Hybrid | _Rows:
    if isinstance(layer, Whole):
        return _Whole(layer.member)
    if isinstance(layer, Sharded):
        return _Tensor(layer.groups, layer.columns)
    if isinstance(layer, Hybrid):
        return _Hybrid(layer.groups, layer.columns, layer.rows, layer.mlp_by_rows, layer.overlap, layer.few_rows)
    step = _form(layer.step)
    assert isinstance(step, (_Whole, _Tensor))
    kinds = layer.keys_values, layer.prefix, layer.overlap
    return _Rows(layer.rows, step, *kinds, layer.few_rows, layer.reordered, layer.pieces)


def _layer(form: _Whole | _Tensor | _Hybrid | _Rows) -> Layer:
    if isinstance(form, _Whole):
        return Whole(form.member)
    if isinstance(form, _Tensor):
        return Sharded(form.groups, form.columns)
    if isinstance(form, _Hybrid):
        return Hybrid(form.groups, form.columns, form.rows, form.mlp_by_rows, form.overlap, form.few_rows)
    step = _layer(form.step)
    assert isinstance(step, (Whole, Sharded))
    kinds = form.keys_values, form.prefix, form.reordered, form.overlap
    return ByRows(form.rows, step, *kinds, form.few_rows, form.pieces)
