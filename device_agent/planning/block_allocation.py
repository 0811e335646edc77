"""EdgeFormer's block allocation (Eq. 2): which device has which run of blocks. Pure.

Blocks are alike. The paper ranks devices by efficiency per storage (f / s) and fills them in that order; M_l, which it
leaves undefined, is read as the bytes of a block's weights. Without hops the least C / f + M / B first is best, and
f / s is not; with hops `exactly` finds the best, since only the set of devices that are used and their order matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Runs = tuple[tuple[int, int], ...]
"""Devices with how many blocks each has, in the order of the blocks."""


@dataclass(frozen=True)
class BlockDevice:
    """One device of Eq. 1.

    Attributes:
        room: blocks that it can store, s.
        speed: what it computes a second, f, in any unit.
        block_s: seconds of one block, C / f + M / B.
    """

    room: int
    speed: float
    block_s: float


class NoRoom(ValueError):
    """The devices cannot store all blocks together."""


def block_seconds(work: float, weights: float, speed: float, memory_bytes_s: float) -> float:
    """A term of Eq. 2: C / f + M / B."""
    return work / speed + weights / memory_bytes_s


def by_efficiency(layers: int, devices: Sequence[BlockDevice]) -> Runs:
    """The paper's two steps: the longest run that fits at the highest f / s, then the next. Raises NoRoom.

    Who has no room, whose f / s is undefined, has no run.
    """
    ranked = sorted(_with_room(devices), key=lambda at: devices[at].speed / devices[at].room, reverse=True)
    return _filled(layers, devices, ranked)


def by_block_seconds(layers: int, devices: Sequence[BlockDevice]) -> Runs:
    """The least sum of Eq. 2, which knows no hops: fastest blocks first. Raises NoRoom."""
    return _filled(layers, devices, sorted(_with_room(devices), key=lambda at: devices[at].block_s))


def exactly(layers: int, devices: Sequence[BlockDevice], hop_s: Sequence[Sequence[float]]) -> Runs:
    """The least `seconds`. Of each set of devices that are used all have a block at least, the fastest the others; and
    the best order is found as a shortest path. Raises NoRoom.

    hop_s: as `seconds` has it.
    """
    usable = _with_room(devices)
    paths = _shortest_paths(usable, hop_s)
    best: tuple[float, Runs] | None = None
    for order, hops in paths:
        counts = _counts(layers, devices, order)
        if counts is None:
            continue
        found = hops + sum(count * devices[at].block_s for at, count in zip(order, counts, strict=True))
        if best is None or found < best[0]:
            best = found, tuple(zip(order, counts, strict=True))
    if best is None:
        raise _no_room(layers, devices)
    return best[1]


def seconds(runs: Runs, devices: Sequence[BlockDevice], hop_s: Sequence[Sequence[float]] | None = None) -> float:
    """Eq. 2's sum, and the hops.

    hop_s: from each device to each; the last row and column are the portal's, where rows come from and go to. None:
    hops take nothing, as in the paper.
    """
    found = sum(count * devices[at].block_s for at, count in runs)
    if hop_s is not None:
        passed = [len(devices), *(at for at, _ in runs), len(devices)]
        found += sum(hop_s[one][other] for one, other in pairwise(passed))
    return found


def _with_room(devices: Sequence[BlockDevice]) -> list[int]:
    return [at for at, device in enumerate(devices) if device.room > 0]


def _no_room(layers: int, devices: Sequence[BlockDevice]) -> NoRoom:
    room = sum(max(device.room, 0) for device in devices)
    return NoRoom(f"{layers} blocks are more than the {room} for which the devices have room")


def _filled(layers: int, devices: Sequence[BlockDevice], ranked: Sequence[int]) -> Runs:
    left, runs = layers, []
    for at in ranked:
        count = min(devices[at].room, left)
        left -= count
        if count:
            runs.append((at, count))
    if left:
        raise _no_room(layers, devices)
    return tuple(runs)


def _counts(layers: int, devices: Sequence[BlockDevice], order: Sequence[int]) -> list[int] | None:
    """How many blocks each has where all have some; None where that cannot be."""
    counts = dict.fromkeys(order, 1)
    left = layers - len(order)
    for at in sorted(order, key=lambda at: devices[at].block_s):
        more = min(devices[at].room - 1, left)
        if more > 0:
            counts[at] += more
            left -= more
    return [counts[at] for at in order] if left == 0 else None


def _shortest_paths(usable: Sequence[int], hop_s: Sequence[Sequence[float]]) -> list[tuple[tuple[int, ...], float]]:
    """Of each set of devices the order in which rows pass it soonest, from the portal and back to it."""
    portal = len(hop_s) - 1
    reached: dict[tuple[frozenset[int], int], tuple[float, tuple[int, ...]]] = {
        (frozenset([at]), at): (hop_s[portal][at], (at,)) for at in usable
    }
    found: dict[frozenset[int], tuple[float, tuple[int, ...]]] = {}
    while reached:
        further: dict[tuple[frozenset[int], int], tuple[float, tuple[int, ...]]] = {}
        for (used, last), (took, order) in reached.items():
            home = took + hop_s[last][portal], order
            found[used] = min(found.get(used, home), home)
            for at in usable:
                if at not in used:
                    key, way = (used | {at}, at), (took + hop_s[last][at], (*order, at))
                    further[key] = min(further.get(key, way), way)
        reached = further
    return [(order, took) for took, order in found.values()]
