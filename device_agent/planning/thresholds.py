"""LIME's memory-aware planner: what a member streams besides, once keys and values fill its memory (Eq. 5-7). Pure.

As Eq. 5 must be meant, a threshold is a number of tokens: the memory left, by the bytes that one token's keys and
values take. Behind it the member streams what frees memory for more, of the least bytes that do (Eq. 6). Its ring stays
as it is, so that all of a unit's bytes become free. All is known beforehand: while a group works it only looks up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Final

from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.task import Task
from split_model.offload.units import HALVES, Unit

GOLDEN: Final = 0.618
"""Steps of this share of a circle never come close to where they have been."""


@dataclass(frozen=True)
class Relief:
    """What a member streams once there are many keys and values.

    Attributes:
        tokens: of all sessions together, from which on.
        streamed: as in `GroupPlan`.
    """

    tokens: int
    streamed: tuple[Unit, ...]


def room_for_tokens(task: Task, plan: GroupPlan, member: int) -> tuple[int, int]:
    """Bytes that a member of a pipeline has for keys and values, and how many bytes those of one token are."""
    name = plan.members[member]
    found = task.held(plan)[name]
    budget = next(device.memory_bytes for device in task.profile.devices if device.name == name)
    layers = sum(layer == Whole(member) for layer in plan.layers)
    return budget - (found.total - found.cache), layers * 2 * task.shape.kv_size * task.shape.dtype_bytes


def relief_of(task: Task, plan: GroupPlan, growing: bool = True) -> tuple[tuple[Relief, ...], ...]:
    """For each member of a pipeline, by rising tokens, what it streams from then on, until all that its ring can take
    is streamed; nothing for who has no ring.

    growing: each step streams what the one before does and one unit more, so nothing must be read to be kept again.
        Else each is the least that is enough, as in the paper, whose plans take one another's place.
    """
    return tuple(tuple(_of_member(task, plan, member, growing)) for member in range(len(plan.members)))


def _of_member(task: Task, plan: GroupPlan, member: int, growing: bool) -> Iterator[Relief]:
    now = plan.streamed[member] if plan.streams else ()
    room, token = room_for_tokens(task, plan, member)
    own = [number for number, layer in enumerate(plan.layers) if layer == Whole(member)]
    kept = [[Unit(number, half) for number in own if Unit(number, half) not in now] for half in HALVES]
    sizes = [plan.unit_bytes(task.shape, member, units[0]) if units else 0 for units in kept]
    ring = plan.ring_bytes[member] if plan.streams else 0
    usable = [_spread(units) if size <= ring else [] for units, size in zip(kept, sizes, strict=True)]
    if not token:
        return
    counts = [len(units) for units in usable]
    freed = 0
    for attentions, mlps in _growing(counts) if growing else _least(counts, sizes):
        chosen = [*now, *usable[0][:attentions], *usable[1][:mlps]]
        yield Relief(max((room + freed) // token, 0) + 1, tuple(sorted(chosen)))
        freed = attentions * sizes[0] + mlps * sizes[1]


def _growing(counts: Sequence[int]) -> Iterable[tuple[int, int]]:
    """One attention after the other, then one MLP after the other."""
    yield from ((attentions, 0) for attentions in range(1, counts[0] + 1))
    yield from ((counts[0], mlps) for mlps in range(1, counts[1] + 1))


def _least(counts: Sequence[int], sizes: Sequence[int]) -> Iterable[tuple[int, int]]:
    """All numbers of both, by the bytes that they free, each more than the one before."""
    every = ((a * sizes[0] + m * sizes[1], a, m) for a in range(counts[0] + 1) for m in range(counts[1] + 1))
    freed = 0
    for size, attentions, mlps in sorted(every):
        if size > freed:
            freed = size
            yield attentions, mlps


def _spread(units: Sequence[Unit]) -> list[Unit]:
    """The units in an order in which the first few lie far apart."""
    step = max(round(len(units) * GOLDEN), 1)
    while gcd(step, len(units)) > 1:
        step += 1
    return [units[at * step % len(units)] for at in range(len(units))]
