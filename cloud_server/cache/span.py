"""A session's rows in a step: in which pages they are stored, and what they see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from split_model.tree import Branches


@dataclass(frozen=True)
class PagedSpan:
    """The new rows of one session.

    Args:
        pages: the session's page numbers in order, enough for ``start + rows`` positions.
        start: absolute position of the first new row.
        rows: how many there are.
        branching: where the rows stand and what they see, when they are not simply the next positions; they are stored
            as if they were.
    """

    pages: Sequence[int]
    start: int
    rows: int
    branching: Branches | None = None

    @property
    def end(self) -> int:
        """Positions of the session once the rows are stored."""
        return self.start + self.rows

    def halves(self) -> tuple[PagedSpan, PagedSpan]:
        """The same rows, at least two, as two spans of which the first runs first."""
        first, branching = self.rows // 2, self.branching
        parts: tuple[Branches | None, Branches | None] = (None, None)
        if branching is not None:
            before = branching.positions[: first - self.rows]
            parts = (
                replace(branching, positions=before, seen=branching.seen[:first]),
                replace(branching, seen=branching.seen[first:]),
            )
        return (
            replace(self, rows=first, branching=parts[0]),
            replace(self, start=self.start + first, rows=self.rows - first, branching=parts[1]),
        )
