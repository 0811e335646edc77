"""LIME: a pipeline of several segments whose members read from their disks what does not fit their memory. Pure.

For each number of segments the cheapest allocation by `allocation`'s cost; of these the fastest on the timeline, and
then what is near it. Where everything fits, a plain pipeline.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from math import ceil

from device_agent.planning.allocation import Allocation, Held, allocate, ways
from device_agent.planning.lime_allocations import (
    MODE,
    Start,
    in_one_segment,
    layers_by_memory,
    planned,
    rooms_of,
    sizes_of,
)
from device_agent.planning.lime_near import improved, seconds_of
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.micro_batches import in_micro_batches
from device_agent.planning.plan import GroupPlan
from device_agent.planning.residency import Residency
from device_agent.planning.task import Task
from device_agent.planning.thresholds import SPARE, grown, most_tokens, with_relief
from device_agent.planning.transfers import with_transfers

PLAYED = 12
"""Allocations of so many numbers of segments are played, the best by the cost; the others are left out."""


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
    best, seconds = min(((start, seconds_of(task, start)) for start in started), key=lambda each: each[1])
    if any(member.residency != Residency() for member in best[0].members):
        best = improved(task, best, seconds)
    return task.fitting(planned(task, *best))


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
