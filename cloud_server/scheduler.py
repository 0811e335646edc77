"""Which rows run in the next step. Pure: keys and counts in, a plan out.

One formula, no phases: a decode row, a verification and a prompt chunk are all *new positions* of a session. Short
work (decode, verification) goes first, then chunks, up to a budget of rows; what does not fit is begun and goes on in
the next step. So a long prompt delays a decoder by at most one step, and while chunks wait a part of every step
is theirs, so decoders cannot starve them either. Several short forwards of one session that wait one behind the other
run together: a draft may send its rows as it makes them. Rows that branch are one verification and run undivided.

Among the short and among the chunks the tenant that was served least goes first, by start-time fair queueing: each has
a virtual time, the rows it was served, and one that comes back after idling starts where the least served of those who
waited stands. Within a tenant the longest waiting goes first, counted from when it became the next of its session: who
sends far ahead gets no earlier turn. So however much one tenant asks for, the rows another gets are those of its share.

The chunks of one prompt have the turn of its first: of prompts that run one after the other all but the last are done
sooner than side by side. A turn ends after ``TURN_ROWS`` rows, so that who sends chunks for ever starves nobody.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeGuard, TypeVar

Key = TypeVar("Key", bound=Hashable)

SHORT_ROWS = 32
"""Work of at most this many rows is a decode row or a verification: somebody waits for the next token. Also the most
rows of a session whose forwards run together."""

CHUNK_SHARE = 4
"""While chunks wait, short work leaves them one in this many rows of the budget."""

MIN_CHUNK_ROWS = 8
"""While chunks wait, short work in the same step limits them to no fewer rows than these."""

TURN_ROWS = 4096
"""Chunks one behind the other have the turn of the first of them up to this many rows in all; prompts of the common
lengths have fewer."""


@dataclass(frozen=True)
class Budget:
    """How much one step may hold: ``rows`` in all, of them ``chunk_rows`` of chunks while short work is in it too."""

    rows: int
    chunk_rows: int

    def __post_init__(self) -> None:
        assert self.rows >= CHUNK_SHARE and self.chunk_rows >= 0


@dataclass(frozen=True)
class Demand:
    """What the next step is asked for: all rows of short work that may run in it, and the sessions that have short work
    and chunks."""

    short_rows: int
    short_sessions: int
    chunk_sessions: int


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
    """Before this step's rows, forget everything of a session from ``position`` on, but for its nodes ``nodes``, which
    are its next positions from now on."""

    key: Key
    position: int
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan(Generic[Key]):
    """One step: first the truncations, then all portions in one batch.

    Where a session has several, they are consecutive and in order, ``SHORT_ROWS`` rows in all at most, and each but the
    last completes its forward.
    """

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


def _joins(work: _Forward | _Back, rows: int) -> TypeGuard[_Forward]:
    """Whether what comes next of a session may run in one step with ``rows`` rows of short work before it."""
    return isinstance(work, _Forward) and not work.whole and rows + work.left <= SHORT_ROWS


class _Shares:
    """Who was served how much: the virtual time of every tenant that waits for one kind of work or lately did."""

    def __init__(self) -> None:
        self._times: dict[Hashable, int] = {}
        self._floor = 0

    def in_turn(self, heads: list[tuple[Key, Hashable, _Forward]]) -> Iterator[tuple[Key, _Forward]]:
        """All heads (session, tenant, forward), each time the least served tenant's longest waiting one.

        ``serve`` counts at once: what is served between two heads decides who has the second.
        """
        heads.sort(key=lambda head: -head[2].turn)
        of_tenant: dict[Hashable, list[tuple[Key, _Forward]]] = {}
        for key, tenant, work in heads:
            of_tenant.setdefault(tenant, []).append((key, work))
        self._times.update((tenant, self._time(tenant)) for tenant in of_tenant)
        order = [(self._times[tenant], lines[-1][1].turn, tenant) for tenant, lines in of_tenant.items()]
        heapq.heapify(order)  # No two turns are the same, so tenants themselves are never compared.
        while order:
            tenant = order[0][2]
            lines = of_tenant[tenant]
            yield lines.pop()
            if lines:
                heapq.heapreplace(order, (self._times[tenant], lines[-1][1].turn, tenant))
            else:
                heapq.heappop(order)

    def serve(self, tenant: Hashable, rows: int) -> None:
        """``rows`` of a tenant run."""
        self._times[tenant] = self._time(tenant) + rows

    def settle(self, waiting: set[Hashable]) -> None:
        """After a step: these tenants still wait. When none does, everybody has had all they asked for."""
        if not waiting:
            self._times.clear()
            self._floor = 0
            return
        self._floor = max(self._floor, min(map(self._time, waiting)))
        self._times = {tenant: time for tenant, time in self._times.items() if time > self._floor}

    def _time(self, tenant: Hashable) -> int:
        return max(self._floor, self._times.get(tenant, 0))


class Scheduler(Generic[Key]):
    """Work waiting, one queue for each session, kept in the order it came.

    Args:
        turn_rows: most rows of chunks that have one turn, unless a single chunk has more.
    """

    def __init__(self, turn_rows: int = TURN_ROWS) -> None:
        self._turn_rows = turn_rows
        self._queues: dict[Key, _Queue] = {}
        self._prompts: dict[Key, tuple[int, int]] = {}
        self._turns = 0
        self._waiting_rows = 0
        self._short_shares = _Shares()
        self._chunk_shares = _Shares()

    def add(self, key: Key, sequence: int, rows: int, tenant: Hashable = None, whole: bool = False) -> None:
        """Forward ``sequence`` of a session, of ``rows`` rows, is ready to run; it is this tenant's session.

        A ``whole`` one is short work of any size and never divided: where it fits in no step, one is larger for it.
        """
        assert rows > 0
        queue = self._queue(key)
        queue.tenant = tenant
        queue.works.append(_Forward(sequence, rows, whole or rows <= SHORT_ROWS, whole))
        self._waiting_rows += rows
        self._give_turn(key, queue)

    def truncate(self, key: Key, position: int, nodes: tuple[int, ...] = ()) -> None:
        """Go back to ``position`` once everything added before is done, where the nodes ``nodes`` go on. A prompt that
        comes behind it has a turn of its own."""
        self.turn_over(key)
        works = self._queue(key).works
        if works and isinstance(last := works[-1], _Back):
            # One is enough: so nobody can pile them up.
            assert not nodes, "there are no nodes behind a truncation"
            last.nodes = last.nodes[: max(0, position - last.position)]
            last.position = min(last.position, position)
        else:
            works.append(_Back(position, nodes))

    def remove(self, key: Key) -> None:
        """Forget a session and all its work."""
        queue = self._queues.pop(key, None)
        self._prompts.pop(key, None)
        if queue is not None:
            self._waiting_rows -= sum(work.left for work in queue.works if isinstance(work, _Forward))

    def turn_over(self, key: Key) -> None:
        """The session's prompt is over: its next chunk has a turn of its own."""
        self._prompts.pop(key, None)

    def waiting(self, key: Key) -> bool:
        """Whether anything of a session, rows or a truncation, is not yet in any step."""
        return key in self._queues

    @property
    def waiting_sessions(self) -> int:
        """Sessions of which anything is not yet in any step."""
        return len(self._queues)

    @property
    def waiting_rows(self) -> int:
        """Rows not yet in any step."""
        return self._waiting_rows

    @property
    def demand(self) -> Demand:
        """What could run in the next step."""
        rows = sessions = chunks = 0
        for key, _, work in self._heads():
            if not work.short:
                chunks += 1
                continue
            sessions += 1
            queue = self._queues[key]
            rows += work.left if len(queue.works) == 1 else queue.short_rows
        return Demand(rows, sessions, chunks)

    def plan(self, budget: Budget) -> Plan[Key]:
        """The next step within ``budget``, and count it as done. Empty when nothing waits."""
        truncations: list[Truncation[Key]] = []
        for key, queue in self._queues.items():
            while queue.works and isinstance(back := queue.works[0], _Back):
                truncations.append(Truncation(key, back.position, back.nodes))
                queue.works.popleft()
            self._give_turn(key, queue)
        for key in {truncation.key for truncation in truncations}:
            if not self._queues[key].works:
                del self._queues[key]
        heads = self._heads()
        short = [head for head in heads if head[2].short]
        chunks = [head for head in heads if not head[2].short]

        portions: list[Portion[Key]] = []
        chunk_rows = min(max(budget.chunk_rows, MIN_CHUNK_ROWS), sum(work.left for _, _, work in chunks))
        share = min(budget.rows // CHUNK_SHARE, chunk_rows)
        left = budget.rows - share
        for key, work in self._short_shares.in_turn(short):
            if left <= 0 or (work.whole and work.rows > left and portions):
                break
            # One that does not fit is begun: were it passed over, smaller ones behind it might do so for ever.
            left -= self._take(key, work, left, portions, self._short_shares)
        left = min(share + max(left, 0), chunk_rows) if portions else budget.rows
        for key, work in self._chunk_shares.in_turn(chunks):
            if left <= 0:
                break
            left -= self._take(key, work, left, portions, self._chunk_shares)

        for key in {portion.key for portion in portions if portion.last}:
            if not self._queues[key].works:
                del self._queues[key]
        heads = self._heads()
        self._short_shares.settle({tenant for _, tenant, work in heads if work.short})
        self._chunk_shares.settle({tenant for _, tenant, work in heads if not work.short})
        return Plan(tuple(truncations), tuple(portions))

    def _heads(self) -> list[tuple[Key, Hashable, _Forward]]:
        """The next forward of every session, with its session and tenant."""
        heads = []
        for key, queue in self._queues.items():
            for work in queue.works:
                if isinstance(work, _Forward):
                    heads.append((key, queue.tenant, work))
                    break
        return heads

    def _queue(self, key: Key) -> _Queue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue()
        return queue

    def _take(self, key: Key, work: _Forward, left: int, portions: list[Portion[Key]], shares: _Shares) -> int:
        """Up to ``left`` rows of a forward and of those behind it that may run with it; how many they are."""
        queue, taken = self._queues[key], 0
        works = queue.works
        while True:
            rows = work.left
            last = rows <= left - taken or work.whole
            if not last:
                rows = left - taken
            portions.append(Portion(key, work.sequence, work.done, rows, last))
            work.done += rows
            taken += rows
            if not last:
                break
            works.popleft()
            if not works or taken >= left or work.whole or not work.short:
                break
            following = works[0]
            if not _joins(following, taken):
                break
            work = following
        shares.serve(queue.tenant, taken)
        self._waiting_rows -= taken
        self._give_turn(key, queue)
        return taken

    def _give_turn(self, key: Key, queue: _Queue) -> None:
        """What comes next of a session gets its turn: a chunk that of the chunk before it, while the rows of both and
        of those before them are few enough."""
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
