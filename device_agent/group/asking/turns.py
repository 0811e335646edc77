"""What a group is asked next, of all that waits: steps of few rows together, long ones in portions between them. Pure.

A step costs the latency of its collectives, and the reading of all weights, whatever its rows; so decode rows and
drafts of several sessions go together. A long prompt goes in portions while others decode, by turns with them. What
one session asks stays in order, and a fork behind what its source has asked.

Where members read weights from their disks for each step, that takes so much longer than computing rows that drafts of
any length go together: a step that is saved is all that is read for it.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from device_agent.group.messages.heads import (
    MAX_BATCHED,
    CloseHead,
    ForkHead,
    GroupHead,
    KeepHead,
    ReadHead,
    RowsHead,
    TruncateHead,
)

Item = TypeVar("Item")

SHORT_ROWS: Final = 16
"""At most so many rows are a decode step or a draft."""

BATCH_ROWS: Final = 64
"""Of a step of several sessions; more would cost each of them what they save together."""

SHORT_READ_ROWS: Final = 64
"""The same where weights are read for each step: the longest draft that may be asked for is one of them."""

PORTION_ROWS: Final = 512
"""Of a long prompt in one step, while others decode."""

PATIENCE: Final = 0.25
"""At most this part of a step's time is spent waiting for sessions that were in the last one and come back soon."""

SMOOTHING: Final = 0.8
"""Weight of the past in a step's usual time."""


@dataclass(frozen=True)
class Portion(Generic[Item]):
    """Some rows of what was asked, all but where it is long; none of what has no rows."""

    item: Item
    rows: range


@dataclass(frozen=True)
class GroupTurn(Generic[Item]):
    """What is asked now.

    Attributes:
        portions: one, or short rows of several sessions; none where nothing can be asked now.
        short: whether they are rows of which ``answered`` is to be told as short ones; None: no rows at all.
        wait_s: where there are none, seconds after which there are; None: not before something happens.
    """

    portions: tuple[Portion[Item], ...] = ()
    short: bool | None = None
    wait_s: float | None = None


@dataclass(eq=False)
class _Waiting(Generic[Item]):
    item: Item
    head: GroupHead
    short: bool
    sent: int = 0

    @property
    def subjects(self) -> set[int]:
        """Sessions that it concerns."""
        found = {getattr(self.head, name, None) for name in ("session", "source")}
        return {number for number in found if number is not None}

    @property
    def rows(self) -> int:
        return self.head.rows if isinstance(self.head, (RowsHead, ReadHead)) else 0


class GroupTurns(Generic[Item]):
    """Of one life of a group. Times are seconds of any one clock.

    Args:
        stages: members that work one behind the other, each on another step; 1 where all work on one.
        cuts: whether rows may be cut into portions: where members get only what comes before their own rows, all
            portions but the first would be computed by one.
        reads: whether weights are read from a disk for each step.
        most_rows: that are under way at a time, unless one step alone has more.
    """

    def __init__(self, stages: int = 1, cuts: bool = True, reads: bool = False, most_rows: int = sys.maxsize) -> None:
        self._stages, self._cuts, self._most_rows = stages, cuts, most_rows
        self._short_rows = SHORT_READ_ROWS if reads else SHORT_ROWS
        self._batch_rows = MAX_BATCHED * SHORT_READ_ROWS if reads else BATCH_ROWS
        self._waiting: list[_Waiting[Item]] = []
        self._short, self._long = deque[int](), deque[int]()
        """The rows of each step of its kind that is not answered, in order."""
        self._long_was_last = True
        self._decoding: set[int] = set()
        """Sessions of the last short step."""
        self._away: set[int] = set()
        """Those of them that have been answered and not come back."""
        self._alone: set[int] = set()
        """Sessions that compute other heads than others: their steps are their own."""
        self.only: int | None = None
        """The session that others wait for meanwhile; None: nobody waits for one."""
        self._sent_at: list[float] = []
        self._step_s = 0.0
        self._ready_at = 0.0
        """Since when short rows wait for others, and not for a step."""

    def put(self, item: Item, head: GroupHead, now: float) -> list[Item]:
        """Something is asked, behind what was asked before. Returns what is not asked any more, or not all of it."""
        short = isinstance(head, RowsHead) and head.rows <= self._short_rows and head.session not in self._alone
        waiting = _Waiting(item, head, short)
        if waiting.short and not any(each.short for each in self._waiting):
            self._ready_at = now
        if isinstance(head, KeepHead) or (isinstance(head, ForkHead) and head.source in self._alone):
            self._alone.add(head.session)
        if isinstance(head, (RowsHead, CloseHead)):
            self._away.discard(head.session)
        dropped: list[Item] = []
        if isinstance(head, CloseHead):
            self._decoding.discard(head.session)
            self._alone.discard(head.session)
            dropped = self._drop_unsent(head.session)
        self._waiting.append(waiting)
        return dropped

    def next(self, now: float) -> GroupTurn[Item]:
        """What is asked now; it counts as asked."""
        free = self._free()
        for each in free:
            if not each.rows:
                self._waiting.remove(each)
                return GroupTurn((Portion(each.item, range(0)),))
        short = [each for each in free if each.short]
        long = [each for each in free if not each.short]
        takes_long = bool(long) and len(self._long) < (1 if self._others(long[0]) else self._stages + 1)
        if short and len(self._short) < self._stages and (self._long_was_last or not takes_long):
            wait_s = self._ready_at + PATIENCE * self._step_s - now
            gathers = self._away and self._stages == 1 and self.only is None
            if gathers and wait_s > 0 and len(short) < MAX_BATCHED:
                return GroupTurn(wait_s=wait_s)
            taken = self._taken(short)
            if self._fits(sum(each.rows for each in taken)):
                return GroupTurn(self._batch(taken, now), short=True)
        elif takes_long and self._fits(self._end(long[0]) - long[0].sent):
            return GroupTurn((self._portion(long[0]),), short=False)
        return GroupTurn()

    def answered(self, short: bool, now: float) -> None:
        """A step has been answered, those of its kind in order."""
        if not short:
            self._long.popleft()
            return
        self._short.popleft()
        took = now - self._sent_at.pop(0)
        self._step_s = SMOOTHING * self._step_s + (1 - SMOOTHING) * took if self._step_s else took
        back = {each.head.session for each in self._waiting if isinstance(each.head, RowsHead)}
        self._away = self._decoding - back
        self._ready_at = now

    def _free(self) -> list[_Waiting[Item]]:
        """What nothing of the same session waits before, and nobody waits for."""
        found, held = [], set[int]()
        for each in self._waiting:
            if not each.subjects & held and (self.only is None or each.subjects <= {self.only}):
                found.append(each)
            held |= each.subjects
        return found

    def _drop_unsent(self, session: int) -> list[Item]:
        """Nobody waits for rows of a session that is closed, nor for the rest of those that went in portions, and
        members have room for it no longer than that; a fork that is still to be made of it needs them."""
        if any(getattr(each.head, "source", None) == session for each in self._waiting):
            return []
        dropped = [each for each in self._waiting if _only_of(session, each.head)]
        self._waiting = [each for each in self._waiting if each not in dropped]
        return [each.item for each in dropped]

    def _others(self, waiting: _Waiting[Item]) -> bool:
        """Whether others than this one's session decode."""
        return bool(self._decoding - waiting.subjects)

    def _fits(self, rows: int) -> bool:
        """Whether so many rows may go beside what is under way."""
        under_way = sum(self._short) + sum(self._long)
        return not under_way or under_way + rows <= self._most_rows

    def _taken(self, short: list[_Waiting[Item]]) -> list[_Waiting[Item]]:
        """Those of the next short step."""
        rows, taken = 0, []
        for each in short[:MAX_BATCHED]:
            rows += each.rows
            if rows > self._batch_rows:
                break
            taken.append(each)
        return taken

    def _batch(self, taken: list[_Waiting[Item]], now: float) -> tuple[Portion[Item], ...]:
        self._waiting = [each for each in self._waiting if each not in taken]
        self._decoding = {number for each in taken for number in each.subjects}
        self._short.append(sum(each.rows for each in taken))
        self._sent_at.append(now)
        self._long_was_last = False
        return tuple(Portion(each.item, range(each.rows)) for each in taken)

    def _end(self, waiting: _Waiting[Item]) -> int:
        """Where the next portion of a long one ends."""
        if isinstance(waiting.head, RowsHead) and self._cuts and self._others(waiting):
            return min(waiting.rows, waiting.sent + PORTION_ROWS)
        return waiting.rows

    def _portion(self, waiting: _Waiting[Item]) -> Portion[Item]:
        end = self._end(waiting)
        portion = Portion(waiting.item, range(waiting.sent, end))
        self._long.append(len(portion.rows))
        waiting.sent = end
        if end == waiting.rows:
            self._waiting.remove(waiting)
        self._long_was_last = True
        return portion


def _only_of(session: int, head: GroupHead) -> bool:
    """Whether it is of no use once that session is closed."""
    return isinstance(head, (RowsHead, TruncateHead)) and head.session == session
