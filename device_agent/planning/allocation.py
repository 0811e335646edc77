"""LIME's offline allocation: how many layers each member has, and what of them it streams (Eq. 1-4, Algorithm 1). Pure.

The cost of a step, with #Seg segments, n_i layers at member i and M micro-batches:

    max( sum_i [comp_i + hops_i + stalls_i],  max_i max(M comp_i, reads_i) )

The first is what one micro-batch takes: computing, the way round, and where a ring is smaller than a stage's units,
what is read in the midst of a stage. The second is what each member must do in a step, whatever the others do. Eq. 1
is that with every ring of exactly one stage. Of this cost the programme finds the least there is: it is a sum under a
bound, so for each bound that may be the least a dynamic programme over members and layers finds the least sum. So Eq. 4
must be meant: loads of different members are covered by the same time, and are not added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from device_agent.planning.residency import Residency, Sizes, residencies


@dataclass(frozen=True)
class MemberRoom:
    """What a member has to give.

    Attributes:
        attention_s, mlp_s: seconds of half a layer, for one micro-batch.
        hop_s: seconds until rows have come from the member before.
        read_bytes_s: bytes of weights that come from its disk; 0: it can stream nothing.
        memory: bytes for all that grows with its layers, and for its ring.
        layer_extra: bytes that each layer takes beside what can be streamed: norms, biases, keys and values.
        scratch: bytes that it takes to stream anything, beside the ring.
        lost_s: seconds that computing loses to each byte that is streamed.
    """

    attention_s: float
    mlp_s: float
    hop_s: float
    read_bytes_s: float
    memory: int
    layer_extra: int
    scratch: int = 0
    lost_s: float = 0.0

    @property
    def layer_s(self) -> float:
        return self.attention_s + self.mlp_s


@dataclass(frozen=True)
class Held:
    """A way for a member to hold some layers.

    Attributes:
        passing: seconds that it adds to a micro-batch's way.
        bound: seconds that it needs of each step.
    """

    layers: int
    residency: Residency
    passing: float
    bound: float


@dataclass(frozen=True)
class Allocation:
    """Layers and residency of each member, by number, for so many segments; seconds a step by the cost above."""

    segments: int
    members: tuple[Held, ...]
    seconds: float


def ways(room: MemberRoom, layers: int, segments: int, sizes: Sizes, micro_batches: int) -> list[Held]:
    """All that are looked at for one member."""
    if not layers:
        return [Held(0, Residency(), 0.0, 0.0)]
    stages = min(segments, layers)
    computing = layers * room.layer_s
    found = []
    free = room.memory - layers * room.layer_extra
    if layers * sizes.layer > free:
        free -= room.scratch
    for residency in residencies(layers, stages, sizes, free, micro_batches > 1):
        streamed = residency.streamed(sizes)
        if streamed and not room.read_bytes_s:
            continue
        stage, ring = residency.of_stage(sizes, stages), residency.room(sizes)
        reading = streamed / room.read_bytes_s if streamed else 0.0
        using = residency.attentions * room.attention_s + residency.mlps * room.mlp_s
        # A ring with no more than one stage's units cannot be filled while they are used.
        idle = micro_batches * using if stage + max(sizes.attention, sizes.mlp) > ring else 0.0
        late = (stage - ring) / room.read_bytes_s - computing / stages if stage > ring else 0.0
        passing = computing + stages * (room.hop_s + max(late, 0.0))
        bound = max(micro_batches * computing + streamed * room.lost_s, reading + idle)
        found.append(Held(layers, residency, passing, bound))
    return found


def allocate(
    rooms: Sequence[MemberRoom],
    layers: int,
    segments: int,
    sizes: Sizes,
    micro_batches: int = 1,
    resident: bool = False,
) -> Allocation | None:
    """The cheapest allocation with so many segments, and exactly the cheapest; None where there is none.

    resident: nothing may be streamed.
    """
    held = [
        [
            [
                way
                for way in ways(room, count, segments, sizes, micro_batches)
                if not resident or way.residency == Residency()
            ]
            for count in range(layers + 1)
        ]
        for room in rooms
    ]
    bounds = sorted({way.bound for of_member in held for of_count in of_member for way in of_count})
    found: dict[int, tuple[float, tuple[Held, ...]] | None] = {}

    def under(at: int) -> tuple[float, tuple[Held, ...]] | None:
        if at not in found:
            found[at] = _least_sum(held, layers, bounds[at])
        return found[at]

    def enough(at: int) -> bool:
        least = under(at)
        return least is not None and least[0] <= bounds[at]

    # With a higher bound the least sum is no higher: where the two cross is the least of their maximum.
    cross = bisect_left(range(len(bounds)), True, key=enough)
    best = None
    for at in (cross - 1, cross):
        least = under(at) if 0 <= at < len(bounds) else None
        if least is not None:
            seconds = max(least[0], *(way.bound for way in least[1]))
            if best is None or seconds < best.seconds:
                best = Allocation(segments, least[1], seconds)
    return best


def _least_sum(
    held: Sequence[Sequence[Sequence[Held]]], layers: int, bound: float
) -> tuple[float, tuple[Held, ...]] | None:
    """Ways of all members with so many layers together, none over the bound, that add up to the least."""
    sums = [0.0] + [inf] * layers
    chosen: list[list[Held | None]] = []
    for of_member in held:
        cheapest = [min((way for way in ways if way.bound <= bound), key=_passing, default=None) for ways in of_member]
        allowed = [(count, way) for count, way in enumerate(cheapest) if way is not None]
        after = [inf] * (layers + 1)
        taken: list[Held | None] = [None] * (layers + 1)
        for total in range(layers + 1):
            for count, way in allowed:
                if count > total:
                    break
                found = sums[total - count] + way.passing
                if found < after[total]:
                    after[total], taken[total] = found, way
        sums = after
        chosen.append(taken)
    if sums[layers] == inf:
        return None
    total, members = layers, []
    for taken in reversed(chosen):
        best = taken[total]
        assert best is not None
        members.append(best)
        total -= best.layers
    return sums[layers], tuple(reversed(members))


def _passing(way: Held) -> float:
    return way.passing
