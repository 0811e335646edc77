"""What one session has asked of its group: what of it is done, and what is not, so that another life can go on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Union

import torch

from device_agent.group.messages.heads import (
    MAX_ROWS,
    KeepHead,
    OpenHead,
    ResumeHead,
    RowsHead,
    SourceHead,
    TruncateHead,
)
from device_agent.group.messages.keeping import keep_heads
from device_agent.planning.pruning import Places
from split_model.history import History
from split_model.pruning.kept import HeadSets

SessionHead = Union[OpenHead, ResumeHead, SourceHead, KeepHead, RowsHead, TruncateHead]
"""What a session's life consists of, without its end."""

MAX_LOSSES: Final = 5
"""Lives in a row that ended while something waited for its answer: its rows may be the cause."""


@dataclass(eq=False)
class Unanswered:
    """Rows ``[rows, hidden]`` from ``position`` on that are not answered yet, and the answer for the last ``want``."""

    position: int
    hidden: torch.Tensor
    want: int
    answer: asyncio.Future[torch.Tensor]


@dataclass
class Record:
    """Of one session. Groups answer in order.

    Attributes:
        session: its number.
        positions: most it may reach.
        position: where the next row goes, once all that is pending is done.
        history: the rows that are answered.
        losses: how many lives have ended while it had something pending, since it was last answered.
        source: rows ``[rows, hidden]`` of the text that it is about, as an encoder gave them; None in most models.
        sets: of each of the group's layers the heads that it computes; () for all.
        places: who does, in the life that there is; () for those who have them.
    """

    session: int
    positions: int
    position: int = 0
    history: History = field(default_factory=History)
    losses: int = 0
    source: torch.Tensor | None = None
    sets: HeadSets = ()
    places: Places = ()
    _pending: deque[Union[Unanswered, int]] = field(default_factory=deque)

    @property
    def waiting(self) -> list[Unanswered]:
        """The forwards that are not answered, oldest first."""
        return [each for each in self._pending if isinstance(each, Unanswered)]

    @property
    def reach(self) -> int:
        """The highest position up to which a member may have its rows before all that is pending is done."""
        return max([self.position, *(each.position + len(each.hidden) for each in self.waiting)])

    def forward(self, hidden: torch.Tensor, want: int, answer: asyncio.Future[torch.Tensor]) -> Unanswered:
        """New rows are asked for."""
        asked = Unanswered(self.position, hidden, want, answer)
        self._pending.append(asked)
        self.position += len(hidden)
        return asked

    def truncate(self, position: int) -> None:
        """Rows are to be forgotten, once what was asked before is done."""
        self.position = position
        if self._pending:
            self._pending.append(position)
        else:
            self.history.truncate(position)

    def answered(self, asked: Unanswered) -> bool:
        """The oldest forward is done; False where this is another, of a life that is over."""
        if not self._pending or self._pending[0] is not asked:
            return False
        self._pending.popleft()
        self.history.append(asked.hidden)
        self.losses = 0
        while self._pending and isinstance(position := self._pending[0], int):
            self.history.truncate(position)
            self._pending.popleft()
        return True

    def again(self, had: int | None = None) -> Iterator[tuple[SessionHead, torch.Tensor | None, Unanswered | None]]:
        """What another life has to be asked: heads, rows that follow, whom they answer.

        had: how many positions its members have of this session; None: they know nothing of it.
        """
        if had is not None and had >= self.history.length:
            yield ResumeHead(self.session, self.positions, self.history.length), None, None
        else:
            yield from self._replayed()
        for each in self._pending:
            if isinstance(each, int):
                yield TruncateHead(self.session, each), None, None
            else:
                yield RowsHead(self.session, each.position, len(each.hidden), each.want), each.hidden, each

    def _replayed(self) -> Iterator[tuple[SessionHead, torch.Tensor | None, None]]:
        yield OpenHead(self.session, self.positions), None, None
        for head in keep_heads(self.session, self.sets, self.places) if self.sets else ():
            yield head, None, None
        if self.source is not None:
            yield SourceHead(self.session, len(self.source)), self.source, None
        for begin in range(0, self.history.length, MAX_ROWS):
            end = min(self.history.length, begin + MAX_ROWS)
            yield RowsHead(self.session, begin, end - begin, 0), self.history.rows(begin, end), None
