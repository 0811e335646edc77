"""Who has the rows of a forward while it passes the layers, and how they come to whom needs them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from device_agent.planning.costs import MemberCosts
from device_agent.planning.course import Course
from device_agent.planning.exchanges import Products
from device_agent.planning.lan import Lan
from device_agent.planning.shape import ModelShape
from device_agent.planning.shares import handed_out
from split_model.offload.units import Half


class Reads(Protocol):
    """What members read from their disks to use it."""

    def begin(self, course: Course, number: int, half: Half) -> None:
        """Half a layer is wanted."""

    def end(self, course: Course, number: int, half: Half) -> None:
        """It was used."""


class NoReads:
    """All is in memory."""

    def begin(self, course: Course, number: int, half: Half) -> None:
        """Nobody waits."""

    def end(self, course: Course, number: int, half: Half) -> None:
        """Nothing is free by it."""


class HeldRows:
    """One forward of a group.

    What is exchanged for a layer's input belongs to the layer that made it.

    Attributes:
        rows: how many pass.
        held: who has them: each member so many, one behind the other; one node; None: every member has all.
        early: how many seconds ago each member had made the first piece of its rows, where it makes them in pieces.
        source: rows that an encoder has read, or will have, where layers attend to these.
        read: how many of them layers make keys and values of in this forward.
        reads: what members wait for besides.
    """

    def __init__(
        self,
        shape: ModelShape,
        lan: Lan,
        course: Course,
        costs: MemberCosts,
        rows: int,
        cached: int,
        reads: Reads | None = None,
    ) -> None:
        """cached: positions before them, whose keys and values are there."""
        self.shape = shape
        self.lan = lan
        self.course = course
        self.costs = costs
        self.rows = rows
        self.cached = cached
        self.members = range(lan.members)
        self.held: tuple[int, ...] | int | None = lan.portal
        self.early: list[float] | None = None
        self.source = cached or rows
        self.read = 0 if cached else rows
        self.reads = reads or NoReads()

    @property
    def seen(self) -> float:
        """Positions that a row attends to, in the mean over all rows."""
        return self.cached + ((self.rows + 1) / 2 if self.shape.causal else self.rows)

    def begin(self) -> None:
        """The portal embeds the tokens."""
        self.compute_at(self.lan.portal, self.costs.of(self.lan.portal, "embedding", self.rows))
        self.held = self.lan.portal

    def turn(self, rows: int) -> None:
        """An encoder's rows come to the portal, which has the norm behind them, and from there to all members, who make
        keys and values of them; then so many rows begin to be written."""
        portal = self.lan.portal
        self.to_one(portal, self.rows)
        self.compute_at(portal, self.costs.of(portal, "norm", self.rows))
        self.to_parts_or_all()
        self.gathered([0.0] * len(self.members), None)
        self.rows, self.early = rows, None
        self.begin()

    def end(self, wanted: int) -> None:
        """The last rows come to the portal, which computes the head."""
        portal = self.lan.portal
        if self.held is None and portal in self.members:
            self.held = portal
        self.to_one(portal, wanted)
        self.compute_at(portal, self.costs.of(portal, "head", wanted))

    def compute_at(self, node: int, seconds: float) -> None:
        self.course.compute([seconds if other == node else 0.0 for other in range(len(self.course.at))])

    def norm(self, rows: Sequence[int]) -> None:
        """Norm and residual, of so many rows at each member."""
        self.course.compute([self.costs.of(member, "norm", rows[member]) for member in self.members])

    def to_one(self, node: int, wanted: int) -> None:
        """The last rows come to a node, from wherever they are."""
        if isinstance(self.held, tuple):
            nodes = len(self.course.at)
            parts = [[0.0] * nodes for _ in range(nodes)]
            for member, rows in enumerate(last_of(self.held, wanted)):
                parts[member][node] = rows * self.shape.row_bytes
            self.course.spread(parts)
        elif self.held != node and not (self.held is None and node in self.members):
            self.course.send(self.held or 0, {node: wanted * self.shape.row_bytes})
        self.held = node

    def to_parts(self, shares: Sequence[float]) -> None:
        """Rows that one node has come to the members by these shares."""
        if isinstance(self.held, int):
            node, row_bytes = self.held, self.shape.row_bytes
            self.held = handed_out(self.rows, shares)
            self.course.send(node, {m: self.held[m] * row_bytes for m in self.members if m != node})

    def to_parts_or_all(self) -> None:
        """Rows that one node has and all need come to the members: a few to each, of many a part, to be gathered."""
        if not isinstance(self.held, int):
            return
        node, row_bytes = self.held, self.shape.row_bytes
        if self.rows * row_bytes <= self.lan.small or len(self.members) == 1:
            self.course.send(node, {member: self.rows * row_bytes for member in self.members if member != node})
            self.held = None
        else:
            self.to_parts([1.0] * len(self.members))

    def gathered(self, whole: Sequence[float], tiles: Products | None, pieces: int = 1) -> None:
        """All rows come to every member, and each computes with them.

        whole: seconds of each member's product with all rows at once. tiles: with each member's, where it may begin.
        pieces: of each member's rows, the first of which may have left when ``early`` says.
        """
        if isinstance(self.held, tuple):
            early = self.early if pieces > 1 else None
            pieces = pieces if early else 1
            self.course.gather([rows * self.shape.row_bytes for rows in self.held], whole, tiles, early, pieces)
            self.held = None
        else:
            self.course.compute(whole)


def last_of(parts: Sequence[int], wanted: int) -> tuple[int, ...]:
    """How many of the last rows lie in each part, where parts stand one behind the other."""
    left, taken = wanted, []
    for part in reversed(parts):
        taken.append(min(part, left))
        left -= taken[-1]
    return tuple(reversed(taken))
