"""Where the rows of a step are between two layers, and who computes which of them. Pure.

Members are counted by their *place* in the plan. A layer gets its rows, and leaves them, in one layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

from device_agent.planning.plan import ByRows, Layer, Lent, Sharded, Whole
from device_agent.planning.shares import handed_out, spans


@dataclass(frozen=True)
class Everywhere:
    """Every member has all rows."""


@dataclass(frozen=True)
class At:
    """One member has all rows, the others have none."""

    place: int


@dataclass(frozen=True)
class Parted:
    """Each member has its own rows, some perhaps none.

    Attributes:
        ranges: of each place, one behind the other.
    """

    ranges: tuple[range, ...]

    @property
    def counts(self) -> list[int]:
        """Rows of each place."""
        return [len(each) for each in self.ranges]


Layout = Union[Everywhere, At, Parted]


def parted(rows: int, shares: Sequence[float]) -> Parted:
    """Rows handed out by shares."""
    return Parted(tuple(spans(handed_out(rows, shares))))


def layout_of(layer: Layer, rows: int) -> Layout:
    """Where the rows of a step are before a layer, as it is run, and behind it."""
    if isinstance(layer, Whole):
        return At(layer.member)
    if isinstance(layer, Lent):
        return At(layer.home)
    if isinstance(layer, Sharded):
        return Everywhere()
    return parted(rows, layer.rows)


def entry_of(first: Layout, rows: int, members: int, little: bool) -> Layout:
    """How the portal hands rows out for the first layer: those that all need are parted, to be gathered there, unless
    they are ``little`` for the links."""
    if isinstance(first, Everywhere) and not little:
        return parted(rows, [1] * members)
    return first


def senders(last: Layout, rows: int, want: int, nearest: int) -> list[tuple[int, range]]:
    """Who gives the portal the last ``want`` rows behind the last layer: places and rows, in the order of rows.

    nearest: the place that gives what all have: the portal's own, where it has one.
    """
    wanted = range(rows - want, rows)
    if not want:
        return []
    if isinstance(last, Parted):
        found = [(place, overlap(each, wanted)) for place, each in enumerate(last.ranges)]
        return [(place, each) for place, each in found if each]
    return [(last.place if isinstance(last, At) else nearest, wanted)]


def goes_on(runs: Sequence[Layer], number: int, rows: int) -> bool:
    """Whether to the layer behind one that is computed by rows the same rows go on, and may be given in parts."""
    if number + 1 == len(runs):
        return False
    this, behind = runs[number], runs[number + 1]
    alike = isinstance(behind, ByRows) and not behind.prefix and behind.overlap
    return alike and layout_of(this, rows) == layout_of(behind, rows)


def overlap(one: range, other: range) -> range:
    """What both have."""
    begin = max(one.start, other.start)
    return range(begin, max(begin, min(one.stop, other.stop)))
