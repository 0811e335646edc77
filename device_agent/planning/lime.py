"""LIME: a pipeline of several segments whose members read from their disks what does not fit their memory. Pure.

For each number of segments the cheapest allocation by `allocation`'s cost; of these the fastest on the timeline, and
then what is near it. Where everything fits, a plain pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from math import ceil

from device_agent.planning.allocation import Allocation, Held, MemberRoom, allocate, ways
from device_agent.planning.edgeshard import hop_s
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.micro_batches import in_micro_batches
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.residency import Residency, Sizes
from device_agent.planning.shape import ModelShape
from device_agent.planning.shares import handed_out
from device_agent.planning.task import Task
from device_agent.planning.thresholds import SPARE, grown, most_tokens, with_relief
from device_agent.planning.transfers import with_transfers
from split_model.offload.layout import padded
from split_model.offload.pieces import SCRATCH_BYTES
from split_model.offload.units import HALVES, Half, Unit, spread

MODE = "lime"

PLAYED = 12
"""Allocations of so many numbers of segments are played, the best by the cost; the others are left out."""

MOVES = 200
"""So many plans near the fastest are played at most."""

WORTH = 1e-3
"""A move must make the work faster by this share."""


def plan_lime(task: Task) -> GroupPlan:
    """The fastest plan that was found.

    Where sessions may become longer than the work's there is room from the beginning for the work alone, and members
    stream more as sessions grow, or have their oldest keys and values at others; where that cannot be, there is room
    for all that they may become.

    Where weights may lie coded on the disks, plans in which they do are beside those in which they do not: decoding
    takes memory, too.

    Raises DoesNotFit where not even one unit at a time fits beside the keys and values, and says who lacks how much.
    """
    return with_transfers(task, _fastest(task))


def _fastest(task: Task) -> GroupPlan:
    found: list[GroupPlan] = []
    codes = any(device.codes for device in task.profile.devices)
    if codes:
        with suppress(DoesNotFit):
            found.append(in_micro_batches(task, _for_any_length(task)))
    if not found or found[0].streams:
        plain = task.uncoded() if codes else task
        with suppress(*([DoesNotFit] if found else [])):
            found.append(in_micro_batches(plain, _for_any_length(plain)))
    return min(found, key=task.seconds)


def _for_any_length(task: Task) -> GroupPlan:
    work = task.work
    usual = work.rows + work.new + SPARE
    if not work.new or work.room <= usual:
        return plan_reserved(task)
    little, found = replace(task, work=replace(work, room=usual)), []
    with suppress(DoesNotFit):
        found.append(plan_reserved(little))
    with suppress(DoesNotFit):
        reserved = plan_reserved(task)
        # The same layers and rings, with less to read at first.
        found += [replace(reserved, streamed=((),) * len(reserved.members)), reserved]
    growing = [with_relief(little, plan, work.positions) for plan in found]
    fitting = [each for each in growing if most_tokens(task.shape, each) >= work.positions and not task.lacks(each)]
    if not fitting:
        return plan_reserved(task)

    def seconds(plan: GroupPlan) -> float:
        """Of the usual work, and of the same where sessions are as long as can be."""
        return task.seconds(plan) + task.seconds(grown(task.shape, plan, work.positions))

    return task.fitting(min(fitting, key=seconds))


def plan_reserved(task: Task) -> GroupPlan:
    """With room from the beginning for all that the work may become; nobody streams more later. Raises DoesNotFit."""
    started = _allocated(task)
    best, seconds = min(((start, _seconds(task, start)) for start in started), key=lambda each: each[1])
    if any(member.residency != Residency() for member in best[0].members):
        best = _moved(task, best, seconds)
    return task.fitting(planned(task, *best))


Start = tuple[Allocation, int]
"""An allocation, and in how many micro-batches a step's rows pass."""


def rooms_of(task: Task, rows: int) -> list[MemberRoom]:
    """Of all members, in the order of their ring, for micro-batches of so many rows of the work's steps."""
    shape, costs, work = task.shape, task.costs(), task.work
    last = shape.layers - 1  # None is larger.
    seen = work.rows + work.new // 2 + 1 if work.new else (work.rows + 1) / 2 if shape.causal else work.rows
    kept = 2 * shape.kv_size * work.positions if shape.keeping_layers else 0
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


def _allocated(task: Task) -> list[Start]:
    """One for each number of segments and of micro-batches that is worth a look. Raises DoesNotFit."""
    layers, sizes = task.shape.layers, sizes_of(task)
    most = max(ceil(layers / len(task.members)), 1)
    found: list[Start] = []
    for micro_batches in sorted({1, min(task.work.sessions, len(task.members)), task.work.sessions}):
        rows = ceil(task.work.sessions / micro_batches) if task.work.new else task.work.rows
        rooms = rooms_of(task, rows)
        resident = allocate(rooms, layers, 1, sizes, micro_batches, resident=True)
        if resident is not None:
            found.append((resident, micro_batches))
            continue
        tried = range(1, most + 1)
        allocations = [allocate(rooms, layers, segments, sizes, micro_batches) for segments in tried]
        fitting = sorted((each for each in allocations if each is not None), key=_cost)
        found += [(each, micro_batches) for each in fitting[:PLAYED]]
        # By the cost it may be dear, and on the timeline good: nothing may be worse than offloading the plain way.
        plain = in_one_segment(layers_by_memory(task), rooms, sizes, micro_batches)
        found += [] if plain is None else [(plain, micro_batches)]
    if not found:
        raise DoesNotFit(MODE, task.lacks(_overfull(task)))
    return found


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


def _cost(allocation: Allocation) -> tuple[float, float]:
    """Of those that take as long the one whose micro-batches pass sooner is more likely to do so."""
    return allocation.seconds, sum(member.passing for member in allocation.members)


def _overfull(task: Task) -> GroupPlan:
    """Everybody streams all and has as many layers as there is room for, and who has most memory the rest: the nearest
    to a plan there is."""
    rooms, sizes, layers = rooms_of(task, task.work.sessions), sizes_of(task), task.shape.layers
    counts: list[int] = []
    for room in rooms:
        fitting = [count for count in range(layers + 1) if ways(room, count, 1, sizes, 1)]
        counts.append(min(max(fitting), layers - sum(counts)))
    largest = max(range(len(rooms)), key=lambda member: rooms[member].memory)
    counts[largest] += layers - sum(counts)
    unit = max(sizes.attention, sizes.mlp)
    members = tuple(
        Held(count, Residency(count, count, unit) if count and room.read_bytes_s else Residency(), 0.0, 0.0)
        for count, room in zip(counts, rooms, strict=True)
    )
    return planned(task, Allocation(1, members, 0.0), 1)


def _seconds(task: Task, start: Start) -> float:
    return task.seconds(planned(task, *start))


def _moved(task: Task, best: Start, seconds: float) -> Start:
    """What is near it and faster: other rings, a layer more here and less there, more segments or fewer."""
    sizes, left = sizes_of(task), MOVES
    rows = ceil(task.work.sessions / best[1]) if task.work.new else task.work.rows
    rooms = rooms_of(task, rows)

    def held(member: int, layers: int, segments: int) -> list[Held]:
        return ways(rooms[member], layers, segments, sizes, best[1])

    found = True
    while found and left > 0:
        found = False
        for near in _near(best[0], held):
            left -= 1
            other = _seconds(task, (near, best[1]))
            if other < seconds * (1 - WORTH):
                best, seconds, found = (near, best[1]), other, True
                break
            if left <= 0:
                break
    return best


def _near(allocation: Allocation, held: Callable[[int, int, int], list[Held]]) -> Iterator[Allocation]:
    segments, members = allocation.segments, allocation.members

    def changed(number: int, way: Held) -> tuple[Held, ...]:
        return (*members[:number], way, *members[number + 1 :])

    for number, member in enumerate(members):
        for way in held(number, member.layers, segments):
            if way != member:
                yield replace(allocation, members=changed(number, way))
    for one, other in permutations(range(len(members)), 2):
        fewer = held(one, members[one].layers - 1, segments) if members[one].layers else []
        more = held(other, members[other].layers + 1, segments)
        if fewer and more:
            now = changed(one, min(fewer, key=_slowest))
            yield replace(allocation, members=(*now[:other], min(more, key=_slowest), *now[other + 1 :]))
    for other in (segments - 1, segments + 1):
        again = [held(number, member.layers, other) for number, member in enumerate(members)] if other else []
        if again and all(again):
            yield Allocation(other, tuple(min(each, key=_slowest) for each in again), allocation.seconds)


def _slowest(way: Held) -> float:
    return max(way.passing, way.bound)
