"""Bytes that a plan takes of each device, and who lacks how much. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from device_agent.planning.forms import kept_groups
from device_agent.planning.plan import ByRows, GroupPlan, Hybrid, Layer, Lent, Whole, weights_of
from device_agent.planning.profile import Profile
from device_agent.planning.shape import ModelShape
from device_agent.planning.shares import handed_out
from split_model.offload.file_pieces import SCRATCH_BYTES

FLOAT_BYTES = 4
"""Logits are float32."""


@dataclass(frozen=True)
class Held:
    """Bytes that one device holds for a plan.

    Attributes:
        layers: weights of its layers that stay in memory.
        ends: weights of what comes before the first layer and behind the last.
        cache: keys and values of all positions; where more is streamed as they grow, what is free for them.
        buffers: rows on their way through one layer.
        ring: what weights that do not stay are read into.
    """

    layers: int
    ends: int
    cache: int
    buffers: int
    ring: int = 0

    @property
    def growing(self) -> int:
        """What grows with the layers."""
        return self.layers + self.cache

    @property
    def total(self) -> int:
        return self.layers + self.ends + self.cache + self.buffers + self.ring


@dataclass(frozen=True)
class Lack:
    """A device that a plan does not fit: bytes needed, and those that it may use."""

    device: str
    needed: int
    budget: int

    def __str__(self) -> str:
        return f"{self.device} lacks {(self.needed - self.budget) / 1e6:.1f} MB: {self.needed / 1e6:.1f} are needed"


class DoesNotFit(ValueError):
    """No plan of this kind fits the devices' memory; `lacks` says who lacks how much of the one that came nearest."""

    def __init__(self, mode: str, lacks: Sequence[Lack]) -> None:
        why = "; ".join(str(lack) for lack in lacks) or "all have a little too little memory for whole layers"
        super().__init__(f"{mode} does not fit: {why}")
        self.lacks = tuple(lacks)


def held(shape: ModelShape, plan: GroupPlan, rows: int, positions: int) -> dict[str, Held]:
    """Bytes by device: the members, and the portal.

    rows: the most in one forward. positions: for whose keys and values room is kept; 0 where nothing is generated.
    """
    kinds = Counter((layer, shape.attentions(number)) for number, layer in enumerate(plan.layers))
    found = {}
    for name in dict.fromkeys([*plan.members, plan.portal]):
        member = plan.members.index(name) if name in plan.members else None
        weights = cache = buffers = 0
        for (layer, attentions), count in kinds.items() if member is not None else ():
            assert member is not None
            number = shape.layers - 1 if attentions > 1 else 0
            groups, columns = weights_of(shape, layer, member)
            if groups is not None:
                weights += count * shape.layer_elements(number, groups, columns)
            if shape.causal or attentions > 1:
                # Who attends to an encoder keeps as many positions of the encoder's rows as of its own.
                cache += count * attentions * 2 * shape.head_dim * _kept(shape, plan, layer, member, positions)
            buffers = max(buffers, _passing(shape, layer, member, rows))
        size = shape.dtype_bytes
        kept = plan.cache_bytes[member] if plan.cache_bytes and member is not None else cache * size
        logits = shape.outputs * FLOAT_BYTES if name == plan.portal else 0
        found[name] = Held(
            weights * size - (0 if member is None else _streamed(shape, plan, member)),
            size * _ends(shape, plan, name),
            kept,
            (buffers + rows * shape.hidden) * size + logits,
            0 if member is None else _buffered(plan, member),
        )
    return found


def portal_bytes(shape: ModelShape) -> int:
    """Of the embedding and the head, which a portal has whatever the plan, and loads before it joins any."""
    return shape.dtype_bytes * (shape.embedding_elements + shape.end_elements)


def lacking(profile: Profile, found: dict[str, Held]) -> list[Lack]:
    """Who has too little memory."""
    budgets = {device.name: device.memory_bytes for device in profile.devices}
    return [Lack(name, of.total, budgets[name]) for name, of in found.items() if of.total > budgets[name]]


def _streamed(shape: ModelShape, plan: GroupPlan, member: int) -> int:
    """Bytes of weights that a member reads at each use instead of keeping them."""
    elements = 0
    for unit in plan.streamed[member] if plan.streams else ():
        groups, columns = weights_of(shape, plan.layers[unit.layer], member)
        elements += sum(shape.matrices(unit.half, groups if unit.half == "attention" else columns, unit.layer))
    return shape.dtype_bytes * elements


def _buffered(plan: GroupPlan, member: int) -> int:
    """Bytes that streamed weights come into, and what decoding them takes."""
    return (plan.ring_bytes[member] if plan.ring_bytes else 0) + (SCRATCH_BYTES if plan.codes(member) else 0)


def _kept(shape: ModelShape, plan: GroupPlan, layer: Layer, member: int, positions: int) -> int:
    """Groups times positions whose keys and values a member keeps of one layer."""
    groups = kept_groups(shape, layer, member)
    if isinstance(layer, ByRows) and layer.prefix and member < len(plan.members) - 1:
        positions = ceil(positions * sum(layer.rows[: member + 1]) / sum(layer.rows))
    return groups * positions


def _passing(shape: ModelShape, layer: Layer, member: int, rows: int) -> int:
    """Elements in flight while a layer computes: the rows before and behind a block, and the widest thing between."""
    if isinstance(layer, Lent):
        return _passing_lent(shape, layer, member, rows)
    groups, columns = weights_of(shape, layer, member)
    if groups is None:
        return 0
    attention, mlp, own = rows, rows, rows
    if isinstance(layer, (ByRows, Hybrid)):
        own = handed_out(rows, layer.rows)[member]
    if isinstance(layer, ByRows):
        attention, mlp = own, own
    elif isinstance(layer, Hybrid) and layer.mlp_by_rows:
        mlp = own
    queries = attention * len(groups) * shape.heads_per_group * shape.head_dim
    keys_values = 2 * rows * len(groups) * shape.head_dim
    inner = mlp * len(columns) * (2 if shape.gated else 1)
    return 2 * rows * shape.hidden + max(2 * queries + keys_values, inner)


def _passing_lent(shape: ModelShape, layer: Lent, member: int, rows: int) -> int:
    """As `_passing`: home makes queries, keys and values of all groups where it lends no projections."""
    home = member == layer.home
    if not home and not layer.groups[member] and not layer.columns[member]:
        return 0
    groups = shape.kv_heads if home and not layer.projections else layer.groups[member]
    attention = 2 * rows * groups * (shape.heads_per_group + 1) * shape.head_dim
    inner = rows * layer.columns[member] * (2 if shape.gated else 1)
    # What home gets back of each is added as it comes.
    return (3 if home else 2) * rows * shape.hidden + max(attention, inner)


def _ends(shape: ModelShape, plan: GroupPlan, name: str) -> int:
    """Weights that a device has of what comes before the first layer and behind the last."""
    first = plan.layers[0]
    elements = shape.embedding_elements + shape.end_elements if name == plan.portal else 0
    at = first.member if isinstance(first, Whole) else first.home if isinstance(first, Lent) else None
    if name in plan.members and (at is None or plan.members[at] == name):
        elements += shape.entry_elements
    return elements
