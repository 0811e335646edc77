"""What is near a plan of LIME's and faster on the timeline, looked for step by step. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from math import ceil

from device_agent.planning.allocation import Allocation, Held, ways
from device_agent.planning.lime_allocations import Start, planned, rooms_of, sizes_of
from device_agent.planning.task import Task

MOVES = 200
"""So many plans near the fastest are played at most."""

WORTH = 1e-3
"""A move must make the work faster by this share."""


def seconds_of(task: Task, start: Start) -> float:
    """Of all the work."""
    return task.seconds(planned(task, *start))


def improved(task: Task, best: Start, seconds: float) -> Start:
    """What is near it and faster, or itself: other rings, a layer more here and less there, more segments or fewer."""
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
            other = seconds_of(task, (near, best[1]))
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
