"""Where the rows of a step are between two layers, and who computes which of them. Pure.

Members are counted by their *place* in the plan. A layer gets its rows, and leaves them, in one layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

from device_agent.planning.plan import ByRows, Hybrid, Layer, Sharded, Whole
from device_agent.planning.shares import handed_out, spans

FEW_ROWS = 32
"""A step of at most so many rows is not handed out by rows: it is a decode step, or a draft that is verified."""


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

Run = Union[Whole, Sharded, Hybrid, ByRows]
"""A layer as it is run in one step."""


def parted(rows: int, shares: Sequence[float]) -> Parted:
    """Rows handed out by shares."""
    return Parted(tuple(spans(handed_out(rows, shares))))


def as_run(layer: Layer, rows: int, position: int) -> Run:
    """What is done for a step of so many rows from ``position`` on.

    Few rows are not handed out by rows. And where members have only the keys and values of their prefix, only the last
    can go on.
    """
    if isinstance(layer, (Hybrid, ByRows)) and rows <= FEW_ROWS:
        return layer.step
    if isinstance(layer, ByRows) and layer.prefix and position:
        return layer.step
    return layer


def layout_of(layer: Run, rows: int) -> Layout:
    """Where the rows of a step are before this layer, and behind it."""
    if isinstance(layer, Whole):
        return At(layer.member)
    if isinstance(layer, Sharded):
        return Everywhere()
    return parted(rows, layer.rows)


def entry_of(first: Layout, rows: int, members: int) -> Layout:
    """How the portal hands rows out for the first layer: many that all need are shared, to be gathered there."""
    if isinstance(first, Everywhere) and rows > FEW_ROWS:
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


def overlap(one: range, other: range) -> range:
    """What both have."""
    begin = max(one.start, other.start)
    return range(begin, max(begin, min(one.stop, other.stop)))
