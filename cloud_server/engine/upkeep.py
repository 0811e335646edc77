"""What the next step does to keys and values before it computes: kept nodes and forks get theirs, and pages in which
steps have written for nobody are cleared.

Steps run in order, so until the next one nobody writes to the slots that are read but who is in the list of moves
behind: they are read as they are now, whoever has them then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cloud_server.cache.moving import Move, Unclean
from cloud_server.engine.session import Session


@dataclass(frozen=True)
class Moved:
    """Keys and values of a session that still have to be taken to where its pages say they are; where it is a fork that
    begins with them, its ``positions``."""

    session: Session
    moves: Sequence[Move]
    positions: int = 0


class Upkeep:
    """The moves that the next step begins with, and the pages that are to be cleared."""

    def __init__(self, page_positions: int) -> None:
        self.moved: list[Moved] = []
        self.unclean = Unclean(page_positions)

    def move(self, session: Session, moves: Sequence[Move]) -> None:
        """Have keys and values of a session go elsewhere."""
        if moves:
            self.moved.append(Moved(session, moves))

    def fork(self, session: Session, table: Sequence[int], moves: Sequence[Move], positions: int) -> None:
        """Have a session begin with ``positions`` positions of another in the pages ``table``. These are cleared first,
        and not behind all other moves, as the pages of others are."""
        self.moved.append(Moved(session, [*self.unclean.take(table), *moves], positions))

    def forget(self, session: Session) -> None:
        """Have nothing moved for a session any more."""
        self.unclean.failed([move for each in self.moved if each.session is session for move in each.moves])
        self.moved = [each for each in self.moved if each.session is not session]

    def leave(self, session: Session, table: Sequence[int], kept: int) -> None:
        """Have those pages of a session's ``table`` cleared to which steps under way write and that it does not keep:
        it keeps the pages up to position ``kept``."""
        for stretch in session.under_way:
            self.unclean.mark(table, stretch.span.start, stretch.span.end, kept)

    def take(self) -> tuple[list[Moved], list[Move]]:
        """Return for whom the next step makes moves, and all the moves that it begins with; none are left then."""
        moved, self.moved = self.moved, []
        return moved, [*(move for each in moved for move in each.moves), *self.unclean.take()]
