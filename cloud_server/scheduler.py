"""Which rows run in the next step. Pure: keys and counts in, a plan out.

One formula, no phases: a decode row, a verification and a prompt chunk are all *new positions* of a session. Short
work (decode, verification) goes first, then chunks, up to a budget of rows; a chunk that does not fit is begun and goes
on in the next step. Among the short and among the chunks the longest waiting goes first, counted from when it became
the next of its session: who sends far ahead gets no earlier turn. So a long prompt delays a decoder by at most one
step, and while chunks wait a part of every step is theirs, so decoders cannot starve them either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

SHORT_ROWS = 32
"""Work of at most this many rows is a decode row or a verification: somebody waits for the next token."""

CHUNK_SHARE = 4
"""While chunks wait, short work leaves them one in this many rows of the budget."""


@dataclass(frozen=True)
class Portion(Generic[Key]):
    """Rows ``begin`` to ``begin + rows`` of forward ``sequence`` run in this step; ``last`` when that completes it."""

    key: Key
    sequence: int
    begin: int
    rows: int
    last: bool


@dataclass(frozen=True)
class Truncation(Generic[Key]):
    """Before this step's rows, forget everything of a session from ``position`` on."""

    key: Key
    position: int


@dataclass(frozen=True)
class Plan(Generic[Key]):
    """One step: first the truncations, then all portions in one batch, at most one of each session."""

    truncations: tuple[Truncation[Key], ...]
    portions: tuple[Portion[Key], ...]

    @property
    def rows(self) -> int:
        """Rows in the batch."""
        return sum(portion.rows for portion in self.portions)


@dataclass
class _Forward:
    sequence: int
    rows: int
    turn: int = 0
    done: int = 0


@dataclass
class _Back:
    position: int


class Scheduler(Generic[Key]):
    """Work waiting, one queue for each session, kept in the order it came."""

    def __init__(self) -> None:
        self._queues: dict[Key, deque[_Forward | _Back]] = {}
        self._turns = 0

    def add(self, key: Key, sequence: int, rows: int) -> None:
        """Forward ``sequence`` of a session, of ``rows`` rows, is ready to run."""
        assert rows > 0
        queue = self._queues.setdefault(key, deque())
        queue.append(_Forward(sequence, rows))
        self._give_turn(queue)

    def truncate(self, key: Key, position: int) -> None:
        """Go back to ``position`` once everything added before is done."""
        self._queues.setdefault(key, deque()).append(_Back(position))

    def remove(self, key: Key) -> None:
        """Forget a session and all its work."""
        self._queues.pop(key, None)

    @property
    def waiting_rows(self) -> int:
        """Rows not yet in any step."""
        return sum(
            work.rows - work.done for queue in self._queues.values() for work in queue if isinstance(work, _Forward)
        )

    def plan(self, budget: int) -> Plan[Key]:
        """The next step, of at most ``budget`` rows, and count it as done. Empty when nothing waits."""
        truncations: list[Truncation[Key]] = []
        heads: list[tuple[Key, _Forward]] = []
        for key, queue in self._queues.items():
            while queue and isinstance(queue[0], _Back):
                back = queue.popleft()
                assert isinstance(back, _Back)
                truncations.append(Truncation(key, back.position))
            self._give_turn(queue)
            if queue and isinstance(queue[0], _Forward):
                heads.append((key, queue[0]))
        heads.sort(key=lambda head: head[1].turn)
        short = [head for head in heads if head[1].rows <= SHORT_ROWS]
        chunks = [head for head in heads if head[1].rows > SHORT_ROWS]

        portions: list[Portion[Key]] = []
        left = budget
        for key, work in short:
            kept = budget // CHUNK_SHARE if chunks else 0
            if work.rows - work.done <= left - kept or not portions:
                left -= self._take(key, work, left, portions)
        for key, work in chunks:
            if left <= 0:
                break
            left -= self._take(key, work, left, portions)
        for key in [key for key, queue in self._queues.items() if not queue]:
            del self._queues[key]
        return Plan(tuple(truncations), tuple(portions))

    def _take(self, key: Key, work: _Forward, left: int, portions: list[Portion[Key]]) -> int:
        rows = min(left, work.rows - work.done)
        last = work.done + rows == work.rows
        portions.append(Portion(key, work.sequence, work.done, rows, last))
        work.done += rows
        if last:
            self._queues[key].popleft()
            self._give_turn(self._queues[key])
        return rows

    def _give_turn(self, queue: deque[_Forward | _Back]) -> None:
        if queue and isinstance(queue[0], _Forward) and not queue[0].turn:
            self._turns += 1
            queue[0].turn = self._turns
