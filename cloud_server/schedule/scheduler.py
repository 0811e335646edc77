"""Which rows run in the next step. Pure: keys and counts in, a plan out.

One formula, no phases: a decode row, a verification and a prompt chunk are all *new positions* of a session. Short
work (decode, verification) goes first, then chunks, up to a budget of rows; what does not fit is begun and goes on in
the next step. So a long prompt delays a decoder by at most one step, and while chunks wait a part of every step
is theirs, so decoders cannot starve them either. Several short forwards of one session that wait one behind the other
run together: a draft may send its rows as it makes them. Rows that branch are one verification and run undivided.

Among the short and among the chunks the tenant that was served least goes first (``fair_turns``). Within a tenant the
longest waiting goes first, counted from when it became the next of its session: who sends far ahead gets no earlier
turn. So however much one tenant asks for, the rows another gets are those of its share.

The chunks of one prompt have the turn of its first: of prompts that run one after the other all but the last are done
sooner than side by side. A turn ends after ``TURN_ROWS`` rows, so that who sends chunks for ever starves nobody.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeGuard

from cloud_server.schedule.fair_turns import FairTurns
from cloud_server.schedule.plan import CHUNK_SHARE, SHORT_ROWS, Budget, Demand, Key, Plan, Portion, Truncation

MIN_CHUNK_ROWS = 8
"""While chunks wait, short work in the same step limits them to no fewer rows than these."""

TURN_ROWS = 4096
"""Chunks one behind the other have the turn of the first of them up to this many rows in all; prompts of the common
lengths have fewer."""


@dataclass
class _Forward:
    sequence: int
    rows: int
    short: bool
    whole: bool
    turn: int = 0
    done: int = 0

    @property
    def left(self) -> int:
        return self.rows - self.done


@dataclass
class _Back:
    position: int
    nodes: tuple[int, ...]


@dataclass
class _Queue:
    """The work of one session, in order."""

    tenant: Hashable = None
    works: deque[_Forward | _Back] = field(default_factory=deque)

    @property
    def next(self) -> _Forward | None:
        """The first forward of all that waits."""
        for work in self.works:
            if isinstance(work, _Forward):
                return work
        return None

    @property
    def short_rows(self) -> int:
        """Rows that may run together in the next step, where the next forward is short."""
        rows = 0
        for work in self.works:
            if isinstance(work, _Back):
                if rows:
                    break
            elif rows and not _joins(work, rows):
                break
            else:
                rows += work.left
                if work.whole:
                    break
        return rows


_Waiting = tuple[int, Hashable, tuple[Key, _Forward]]
"""A forward's turn and tenant, and the forward itself with its session."""


def _joins(work: _Forward | _Back, rows: int) -> TypeGuard[_Forward]:
    """Whether what comes next of a session may run in one step with ``rows`` rows of short work before it."""
    return isinstance(work, _Forward) and not work.whole and rows + work.left <= SHORT_ROWS


class Scheduler(Generic[Key]):
    """Work waiting, one queue for each session, kept in the order it came.

    Args:
        turn_rows: most rows of chunks that have one turn, unless a single chunk has more.

    Attributes:
        waiting_rows: rows not yet in any step.
    """

    def __init__(self, turn_rows: int = TURN_ROWS) -> None:
        self._turn_rows = turn_rows
        self._queues: defaultdict[Key, _Queue] = defaultdict(_Queue)
        self._prompts: dict[Key, tuple[int, int]] = {}
        self._turns = 0
        self.waiting_rows = 0
        self._short_turns = FairTurns()
        self._chunk_turns = FairTurns()

    def add(self, key: Key, sequence: int, rows: int, tenant: Hashable = None, whole: bool = False) -> None:
        """Add forward ``sequence`` of a session of ``tenant``: its ``rows`` rows are ready to run.

        A ``whole`` one is short work of any size and never divided: where it fits in no step, one is larger for it.
        """
        assert rows > 0
        queue = self._queues[key]
        queue.tenant = tenant
        queue.works.append(_Forward(sequence, rows, whole or rows <= SHORT_ROWS, whole))
        self.waiting_rows += rows
        self._give_turn(key, queue)

    def truncate(self, key: Key, position: int, nodes: tuple[int, ...] = ()) -> None:
        """Have the session go back to ``position``, where its nodes ``nodes`` go on, once all that was added before is
        done. A prompt that comes behind has a turn of its own."""
        self.turn_over(key)
        works = self._queues[key].works
        if works and isinstance(last := works[-1], _Back):
            # One is enough: so nobody can pile them up.
            assert not nodes, "there are no nodes behind a truncation"
            last.nodes = last.nodes[: max(0, position - last.position)]
            last.position = min(last.position, position)
        else:
            works.append(_Back(position, nodes))

    def goes_back_to(self, key: Key, position: int) -> int:
        """Return the first position that the waiting work of a session may forget, ``position`` at most."""
        queue = self._queues.get(key)
        works = queue.works if queue is not None else ()
        return min([position, *(work.position for work in works if isinstance(work, _Back))])

    def remove(self, key: Key) -> None:
        """Forget a session and all its work."""
        queue = self._queues.pop(key, None)
        self._prompts.pop(key, None)
        if queue is not None:
            self.waiting_rows -= sum(work.left for work in queue.works if isinstance(work, _Forward))

    def turn_over(self, key: Key) -> None:
        """End the session's prompt: its next chunk has a turn of its own."""
        self._prompts.pop(key, None)

    @property
    def waiting_sessions(self) -> int:
        """Sessions of which anything is not yet in any step."""
        return len(self._queues)

    @property
    def demand(self) -> Demand:
        """What could run in the next step."""
        rows = sessions = chunks = 0
        for queue in self._queues.values():
            work = queue.next
            if work is None:
                continue
            if not work.short:
                chunks += 1
                continue
            sessions += 1
            rows += work.left if len(queue.works) == 1 else queue.short_rows
        return Demand(rows, sessions, chunks)

    def plan(self, budget: Budget) -> Plan[Key]:
        """Return the next step within ``budget``, and count it as done. Empty when nothing waits."""
        truncations = self._take_truncations()
        short, chunks = self._waiting()
        portions: list[Portion[Key]] = []
        chunk_rows = min(max(budget.chunk_rows, MIN_CHUNK_ROWS), sum(work.left for _, _, (_, work) in chunks))
        share = min(budget.rows // CHUNK_SHARE, chunk_rows)
        left = budget.rows - share
        for key, work in self._short_turns.in_turn(short):
            if left <= 0 or (work.whole and work.rows > left and portions):
                break
            # One that does not fit is begun: were it passed over, smaller ones behind it might do so for ever.
            left -= self._take(key, work, left, portions, self._short_turns)
        left = min(share + max(left, 0), chunk_rows) if portions else budget.rows
        for key, work in self._chunk_turns.in_turn(chunks):
            if left <= 0:
                break
            left -= self._take(key, work, left, portions, self._chunk_turns)

        self._forget_empty({portion.key for portion in portions if portion.last})
        for turns, waiting in zip((self._short_turns, self._chunk_turns), self._waiting(), strict=True):
            turns.settle({tenant for _, tenant, _ in waiting})
        return Plan(truncations, tuple(portions))

    def _take_truncations(self) -> tuple[Truncation[Key], ...]:
        """Take those that come before any rows, of every session."""
        truncations: list[Truncation[Key]] = []
        for key, queue in self._queues.items():
            while queue.works and isinstance(back := queue.works[0], _Back):
                truncations.append(Truncation(key, back.position, back.nodes))
                queue.works.popleft()
            self._give_turn(key, queue)
        self._forget_empty({truncation.key for truncation in truncations})
        return tuple(truncations)

    def _waiting(self) -> tuple[list[_Waiting[Key]], list[_Waiting[Key]]]:
        """Return the next forward of every session: those that are short, and those that are not."""
        short: list[_Waiting[Key]] = []
        chunks: list[_Waiting[Key]] = []
        for key, queue in self._queues.items():
            if (work := queue.next) is not None:
                (short if work.short else chunks).append((work.turn, queue.tenant, (key, work)))
        return short, chunks

    def _forget_empty(self, keys: set[Key]) -> None:
        for key in keys:
            if not self._queues[key].works:
                del self._queues[key]

    def _take(self, key: Key, work: _Forward, left: int, portions: list[Portion[Key]], turns: FairTurns) -> int:
        """Take up to ``left`` rows of a forward and of those behind it that may run with it; returns how many."""
        queue, taken = self._queues[key], 0
        while True:
            rows = work.left if work.whole else min(work.left, left - taken)
            portions.append(Portion(key, work.sequence, work.done, rows, last=rows == work.left))
            work.done += rows
            taken += rows
            if work.left:
                break
            queue.works.popleft()
            if not queue.works or taken >= left or work.whole or not work.short:
                break
            if not _joins(following := queue.works[0], taken):
                break
            work = following
        turns.serve(queue.tenant, taken)
        self.waiting_rows -= taken
        self._give_turn(key, queue)
        return taken

    def _give_turn(self, key: Key, queue: _Queue) -> None:
        """Give what comes next of a session its turn: a chunk gets that of the chunk before it, while the rows of both
        and of those before them are few enough."""
        works = queue.works
        if not works or not isinstance(first := works[0], _Forward) or first.turn:
            return
        self._turns += 1
        turn, rows = self._prompts.pop(key, (self._turns, 0))
        if first.short or rows + first.rows > self._turn_rows:
            turn, rows = self._turns, 0
        first.turn = turn
        if not first.short:
            self._prompts[key] = turn, rows + first.rows
