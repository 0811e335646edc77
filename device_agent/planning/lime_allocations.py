"""Allocations of LIME: the members that they are made for, and the plans that they stand for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from device_agent.planning.allocation import Allocation, Held, MemberRoom, ways
from device_agent.planning.edgeshard import hop_s
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.residency import Sizes
from device_agent.planning.shape import ModelShape
from device_agent.planning.shares import handed_out
from device_agent.planning.task import Task
from split_model.offload.file_pieces import SCRATCH_BYTES
from split_model.offload.layout import padded
from split_model.offload.units import HALVES, Half, Unit, spread

MODE = "lime"

Start = tuple[Allocation, int]
"""An allocation, and in how many micro-batches a step's rows pass."""


def rooms_of(task: Task, rows: int) -> list[MemberRoom]:
    """Of all members, in the order of their ring, for micro-batches of so many rows of the work's steps."""
    shape, costs, work = task.shape, task.costs(), task.work
    last = shape.layers - 1  # None is larger.
    seen = work.rows + work.new // 2 + 1 if work.new else (work.rows + 1) / 2 if shape.causal else work.rows
    kept = shape.kept_elements(last, work.positions)
    whole = shape.layer_elements(last, range(shape.kv_heads), range(shape.intermediate))
    streamable = sum(size for half, held in halves_of(shape) for size in shape.matrices(half, held, last))
    extra = (whole - streamable + kept) * shape.dtype_bytes
    budgets = {device.name: device for device in task.profile.devices}
    found = []
    for member, name in enumerate(task.members):
        before = task.members[member - 1]
        alone = task.held(GroupPlan(MODE, (name,), task.portal, (Whole(0),) * shape.layers))[name]
        found.append(
            MemberRoom(
                attention_s=costs.half(member, last, "attention", rows, seen),
                mlp_s=costs.half(member, last, "mlp", rows, seen),
                hop_s=hop_s(task, before, name, rows),
                read_bytes_s=budgets[name].loaded_bytes_s(budgets[name].codes),
                memory=budgets[name].memory_bytes - alone.ends - alone.buffers,
                layer_extra=extra,
                scratch=SCRATCH_BYTES if budgets[name].codes else 0,
                lost_s=budgets[name].lost_s(1, budgets[name].codes),
            )
        )
    return found


def halves_of(shape: ModelShape) -> list[tuple[Half, range]]:
    """Both halves of a layer, and what of it a member has that has all."""
    return list(zip(HALVES, (range(shape.kv_heads), range(shape.intermediate)), strict=True))


def sizes_of(task: Task) -> Sizes:
    """Of the largest layer."""
    shape = task.shape
    bytes_of = [
        [padded(size * shape.dtype_bytes) for size in shape.matrices(half, held, shape.layers - 1)]
        for half, held in halves_of(shape)
    ]
    attention, mlp = map(sum, bytes_of)
    return Sizes(attention, mlp, max(map(max, bytes_of)))


def planned(task: Task, allocation: Allocation, micro_batches: int) -> GroupPlan:
    """An allocation as a plan: each member's layers evenly over the segments, what it streams over its layers."""
    segments, holding = allocation.segments, [member for member in allocation.members if member.layers]
    names = [name for name, member in zip(task.members, allocation.members, strict=True) if member.layers]
    layers = tuple(
        Whole(number)
        for segment in range(segments)
        for number, member in enumerate(holding)
        for _ in range(_until(member, segment + 1, segments) - _until(member, segment, segments))
    )
    streamed, rings = [], []
    for number, member in enumerate(holding):
        own = [layer for layer, whole in enumerate(layers) if whole.member == number]
        units = [Unit(layer, "attention") for layer in spread(own, member.residency.attentions)]
        units += [Unit(layer, "mlp") for layer in spread(own, member.residency.mlps)]
        streamed.append(tuple(sorted(units)))
        rings.append(member.residency.ring_bytes)
    if not any(streamed):
        return GroupPlan(MODE, tuple(names), task.portal, layers, micro_batches=micro_batches)
    coding = {device.name for device in task.profile.devices if device.codes}
    coded = tuple(name in coding and bool(units) for name, units in zip(names, streamed, strict=True))
    return GroupPlan(
        MODE,
        tuple(names),
        task.portal,
        layers,
        streamed=tuple(streamed),
        ring_bytes=tuple(rings),
        micro_batches=micro_batches,
        coded=coded if any(coded) else (),
    )


def _until(member: Held, segment: int, segments: int) -> int:
    """How many of a member's layers are in the first segments; where they are few, the first segments have them."""
    return -(-member.layers * segment // segments)


def layers_by_memory(task: Task) -> tuple[int, ...]:
    """To each member layers in proportion to its memory."""
    budgets = {device.name: float(device.memory_bytes) for device in task.profile.devices}
    return handed_out(task.shape.layers, [budgets[name] for name in task.members])


def in_one_segment(
    counts: Sequence[int], rooms: Sequence[MemberRoom], sizes: Sizes, micro_batches: int = 1
) -> Allocation | None:
    """So many layers of each member in a plain pipeline, with the smallest rings; None where they do not fit."""
    held = [ways(room, count, 1, sizes, micro_batches) for count, room in zip(counts, rooms, strict=True)]
    if not all(held):
        return None
    members = tuple(min(of_member, key=_ring) for of_member in held)
    return Allocation(1, members, max(sum(way.passing for way in members), *(way.bound for way in members)))


def _ring(way: Held) -> int:
    return way.residency.ring_bytes
