"""Whole units handed out at least cost. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations

from device_agent.planning.shares import all_ways, ways

EXHAUSTIVE = 200
"""Where there are at most so many ways, all are looked at."""

WORTH = 1e-4
"""A move must make things cheaper by this share."""

Parts = tuple[int, ...]


def best_parts(units: int, starts: Sequence[Parts], cost: Callable[[Parts], float]) -> Parts:
    """The parts, `units` in all, of least cost: exactly so where there are few ways, else the best that was found.

    From the best of `starts` it moves many units, then fewer, between any two, and from one to all others or back (what
    ends last may be several), as long as something becomes cheaper by `WORTH`. So no result is worse than a start.
    """
    count = len(starts[0])
    if ways(units, count) <= EXHAUSTIVE:
        return min([*starts, *all_ways(units, count)], key=cost)  # of equals the first: a start
    best = min(starts, key=cost)
    least = cost(best)
    size = max(units // 8, 1)
    while size:
        moved = False
        for sources, targets in _moves(count):
            parts = _moved(best, sources, targets, size)
            found = cost(parts)
            if found < least * (1 - WORTH):
                best, least, moved = parts, found, True
        if not moved:
            size //= 2
    return best


def _moves(count: int) -> list[tuple[list[int], list[int]]]:
    """From any one to any other; where there are more, from any one to all others, and from all others to the one."""
    members = range(count)
    pairs = [([source], [target]) for source, target in permutations(members, 2)]
    if count == 2:
        return pairs
    apart = [([one], [other for other in members if other != one]) for one in members]
    return pairs + apart + [(others, one) for one, others in apart]


def _moved(parts: Parts, sources: list[int], targets: list[int], size: int) -> Parts:
    """Up to `size` units of each source go to the targets, evenly but for what is left over."""
    moved = list(parts)
    taken = 0
    for source in sources:
        units = min(size * len(targets), moved[source])
        moved[source] -= units
        taken += units
    for at, target in enumerate(targets):
        moved[target] += (taken + at) // len(targets)
    return tuple(moved)
