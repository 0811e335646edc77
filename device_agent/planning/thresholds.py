"""LIME's memory-aware planner: what a member streams besides, once keys and values fill its memory (Eq. 5-7). Pure.

As Eq. 5 must be meant, a threshold is a number of tokens: the memory left, by the bytes that one token's keys and
values take. Behind it the member streams one unit more, and so on; what is streamed only grows, so nothing must be read
to be kept again (Eq. 6 to within one unit). Its ring stays as it is, so that all of a unit's bytes become free. All is
known beforehand: while a group works it only looks up. All members count alike, so portal and members agree.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Final, TypeVar

from device_agent.planning.plan import GroupPlan, Whole, weights_of
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Task
from split_model.offload.file_pieces import SCRATCH_BYTES
from split_model.offload.units import HALVES, Unit

Each = TypeVar("Each")

GOLDEN: Final = 0.618
"""Steps of this share of a circle never come close to where they have been."""

GROWTH: Final = 64
"""A session's caches grow by so many positions beyond those that are needed now."""

SPARE: Final = 2 * GROWTH
"""Positions that a session counts beyond its own: its caches have grown for some, and drafts come and go."""


def counted(position: int, limit: int) -> int:
    """Tokens that a session at a position is counted as, which may reach ``limit``: as many as it surely has memory
    for at most. None before its first row."""
    return min(position + SPARE, limit) if position else 0


@dataclass(frozen=True)
class Relief:
    """What a member streams once there are many keys and values.

    Attributes:
        tokens: of all sessions together, from which on.
        streamed: as in `GroupPlan`.
    """

    tokens: int
    streamed: tuple[Unit, ...]


@dataclass(frozen=True)
class Thresholds:
    """Of one member.

    Attributes:
        steps: by rising tokens; each streams what the one before does and one unit more, the last all that the
            member's ring can take. None for who has no ring.
        most: tokens that find room once all of this is streamed.
    """

    steps: tuple[Relief, ...] = ()
    most: int = sys.maxsize

    def level(self, tokens: int) -> int:
        """How many of the steps are taken with so many tokens."""
        return sum(step.tokens <= tokens for step in self.steps)

    def ceiling(self, tokens: int) -> int:
        """Most tokens for which nothing more is streamed than with so many."""
        level = self.level(tokens)
        return self.steps[level].tokens - 1 if level < len(self.steps) else self.most

    def relieved(self, plan: GroupPlan, member: int, level: int) -> GroupPlan:
        """The plan as it is once a member has taken so many of the steps."""
        if not level:
            return plan
        streamed = list(plan.streamed or ((),) * len(plan.members))
        streamed[member] = self.steps[level - 1].streamed
        return replace(plan, streamed=tuple(streamed))


def thresholds_of(shape: ModelShape, plan: GroupPlan, member: int) -> Thresholds:
    """Those of a member of a pipeline by ``GroupPlan.cache_bytes``; without them nothing bounds it."""
    own = [number for number, layer in enumerate(plan.layers) if layer == Whole(member)]
    if not plan.cache_bytes or not own:
        return Thresholds()
    room, token = plan.cache_bytes[member], token_bytes(shape, len(own))
    now = plan.streamed[member] if plan.streamed else ()
    ring = plan.ring_bytes[member] if plan.ring_bytes else 0
    steps, chosen = [], list(now)
    for unit in _further(own, now):
        if plan.unit_bytes(shape, member, unit) <= ring:
            chosen.append(unit)
            steps.append(Relief(max(room, 0) // token + 1, tuple(sorted(chosen))))
            room += _kept_bytes(shape, plan, member, unit)
    return Thresholds(tuple(steps), max(room, 0) // token)


def token_bytes(shape: ModelShape, layers: int) -> int:
    """Of one token's keys and values in so many layers, and in one more: a layer's are there twice while they grow."""
    return (layers + 1) * 2 * shape.kv_size * shape.dtype_bytes


def most_tokens(shape: ModelShape, plan: GroupPlan) -> int:
    """Tokens of all sessions together that every member can hold."""
    return min(thresholds_of(shape, plan, member).most for member in range(len(plan.members)))


def easy_tokens(shape: ModelShape, plan: GroupPlan) -> int:
    """Tokens of all sessions together that every member can hold before it streams more."""
    found = [thresholds_of(shape, plan, member) for member in range(len(plan.members))]
    return min(each.steps[0].tokens - 1 if each.steps else each.most for each in found)


def grown(shape: ModelShape, plan: GroupPlan, tokens: int) -> GroupPlan:
    """The plan as all members carry it out with so many tokens."""
    for member in range(len(plan.members)):
        thresholds = thresholds_of(shape, plan, member)
        plan = thresholds.relieved(plan, member, thresholds.level(tokens))
    return plan


def cache_room(task: Task, plan: GroupPlan, member: int) -> int:
    """Bytes that a member has for keys and values beside all else."""
    name = plan.members[member]
    found = task.held(plan)[name]
    budget = next(device.memory_bytes for device in task.profile.devices if device.name == name)
    return budget - (found.total - found.cache)


def with_relief(task: Task, plan: GroupPlan, tokens: int) -> GroupPlan:
    """A plan of whole layers whose members stream more as keys and values grow, to so many tokens if that can be
    (`most_tokens`), and from the beginning no more than leaves memory for the work.

    Who has a disk, and would hold too few tokens by what its ring can take, gets a ring for any unit.
    """
    members, codes = range(len(plan.members)), {device.name for device in task.profile.devices if device.codes}
    plan = replace(
        plan,
        streamed=plan.streamed or ((),) * len(members),
        ring_bytes=plan.ring_bytes or (0,) * len(members),
        coded=tuple(name in codes for name in plan.members) if codes else (),
    )
    found = [_relieved(task, plan, member, tokens) for member in members]
    streamed, rings, rooms = zip(*found, strict=True)
    return replace(plan, streamed=streamed, ring_bytes=rings, cache_bytes=rooms)


def _relieved(task: Task, plan: GroupPlan, member: int, tokens: int) -> tuple[tuple[Unit, ...], int, int]:
    """What a member streams at first, its ring, and its room for keys and values."""
    shape, own = task.shape, [number for number, layer in enumerate(plan.layers) if layer == Whole(member)]
    streamed, had, room = list(plan.streamed[member]), plan.ring_bytes[member], cache_room(task, plan, member)
    token, further = token_bytes(shape, len(own)), list(_further(own, streamed))
    asked = task.work.positions * token
    [disk] = [device.read_bytes_s for device in task.profile.devices if device.name == plan.members[member]]

    def usable(ring: int) -> list[Unit]:
        return [unit for unit in further if plan.unit_bytes(shape, member, unit) <= ring]

    ring = had
    if disk and further and room + sum(_kept_bytes(shape, plan, member, unit) for unit in usable(had)) < tokens * token:
        rooms = [plan.matrices(shape, member, unit) for unit in further]
        largest = max(map(sum, rooms))
        ring = max(had, 2 * largest + max(map(max, rooms)))
        if room + had - ring < asked:
            ring = max(had, largest)
        room += had - ring
        if not had and plan.coded and plan.coded[member]:
            room -= SCRATCH_BYTES
    for unit in usable(ring):
        if room >= asked:
            break
        streamed.append(unit)
        room += _kept_bytes(shape, plan, member, unit)
    return tuple(sorted(streamed)), ring, max(room, 0)


def _kept_bytes(shape: ModelShape, plan: GroupPlan, member: int, unit: Unit) -> int:
    """Of half a layer while it stays in memory."""
    groups, columns = weights_of(shape, plan.layers[unit.layer], member)
    return shape.dtype_bytes * sum(
        shape.matrices(unit.half, groups if unit.half == "attention" else columns, unit.layer)
    )


def _further(own: Sequence[int], now: Sequence[Unit]) -> Iterator[Unit]:
    """One MLP after the other, then one attention after the other: as many bytes in fewer reads, each of which somebody
    may wait for."""
    for half in reversed(HALVES):
        yield from far_apart([Unit(number, half) for number in own if Unit(number, half) not in now])


def far_apart(units: Sequence[Each]) -> list[Each]:
    """In an order in which the first few lie far apart."""
    step = max(round(len(units) * GOLDEN), 1)
    while gcd(step, len(units)) > 1:
        step += 1
    return [units[at * step % len(units)] for at in range(len(units))]
