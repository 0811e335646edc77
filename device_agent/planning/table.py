"""Seconds that were measured at some sizes, and what lies between and beyond them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from math import prod

import msgspec

MAX_POINTS = 1 << 16


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A grid of measured points.

    Between its points it is linear along each axis, which is exact for c + r·rows + w·width + p·rows·width; beyond them
    the line of the two nearest goes on. It is never under its last point beyond it, nor below its first point under
    that point's share; a size of 0 takes no time. With one point along an axis, time is in proportion to the size.

    Attributes:
        axes: the sizes measured along each axis, rising, 1 or more.
        seconds: of all points, the last axis fastest.

    Raises ValueError where the two make no grid.
    """

    axes: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        for axis in self.axes:
            if not axis or axis[0] < 1 or any(after <= before for before, after in pairwise(axis)):
                raise ValueError(f"{list(axis)} are no sizes that rise from 1 or more")
        points = prod(len(axis) for axis in self.axes)
        if not self.axes or points > MAX_POINTS or points != len(self.seconds):
            raise ValueError(f"{len(self.seconds)} seconds are given for {points} points (at most {MAX_POINTS})")
        if not all(0 <= second < float("inf") for second in self.seconds):
            raise ValueError("seconds must be 0 or more, and finite")

    def __call__(self, *sizes: float) -> float:
        """Seconds at these sizes, one for each axis."""
        assert len(sizes) == len(self.axes)
        if min(sizes) <= 0:
            return 0.0
        inside = [min(max(size, axis[0]), axis[-1]) for size, axis in zip(sizes, self.axes, strict=True)]
        least = self._line(inside)
        if inside == list(sizes):
            return least
        for size, axis in zip(sizes, self.axes, strict=True):
            least *= min(1.0, size / axis[0])
        return max(self._line(sizes), least)

    def _line(self, sizes: tuple[float, ...] | list[float]) -> float:
        corners = [(0, 1.0)]
        for size, axis in zip(sizes, self.axes, strict=True):
            ends = _ends(axis, size)
            corners = [(at * len(axis) + end, weight * part) for at, weight in corners for end, part in ends]
        return sum(weight * self.seconds[at] for at, weight in corners)


def _ends(axis: tuple[int, ...], size: float) -> list[tuple[int, float]]:
    """The points of an axis that a size lies between, or is on a line with, and the weight of each."""
    if len(axis) == 1:
        return [(0, size / axis[0])]
    low = min(max(bisect_right(axis, size) - 1, 0), len(axis) - 2)
    part = (size - axis[low]) / (axis[low + 1] - axis[low])
    return [(low, 1 - part), (low + 1, part)]
