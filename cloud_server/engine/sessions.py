"""Sessions as devices ask for them: opened, resumed, kept and ended, and what they wait for.

Everything here runs on the event loop, and none of it is long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

import torch

from cloud_server.cache.moving import Key, copied
from cloud_server.engine.entries import SessionState
from cloud_server.engine.ledger import RETRY_AFTER_S, Ledger, full
from cloud_server.engine.session import Deliver, Queued, Session
from cloud_server.engine.shares import expired, victim
from cloud_server.engine.upkeep import Upkeep
from cloud_server.metrics import CloudMetrics
from cloud_server.schedule.gathering import Gathering
from cloud_server.schedule.scheduler import Scheduler
from wire.errors import Code, SessionFailed

COPIED_POSITIONS = 2**14
"""Positions that forks of one tenant have copied in one step, or one fork alone. A step's rows wait for it; so many
take as long as some tens of rows, and who forks and closes for ever holds the others up no further."""


class Sessions:
    """All sessions, their pages, and their work that waits for a step.

    Args:
        ledger: the rules of admission and order, and the pages.
        gathering: is told who comes and goes.

    Attributes:
        lost: whether no step can be run now; then nobody is admitted. The engine sets it.
        work: set when there is something to do.
    """

    def __init__(self, ledger: Ledger, gathering: Gathering[Key], metrics: CloudMetrics) -> None:
        self.ledger = ledger
        self.scheduler = Scheduler[Key]()
        self.upkeep = Upkeep(ledger.limits.page_positions)
        self.lost = True
        self.work = asyncio.Event()
        self._gathering = gathering
        self._metrics = metrics
        self._of: dict[Key, Session] = {}
        self._fewer_open = asyncio.Event()

    # ---- what devices ask ----

    def open(
        self,
        key: Key,
        tenant: str,
        positions: int,
        deliver: Deliver,
        *,
        prompt: int = 0,
        expected: int = 0,
        replayed: bool = False,
    ) -> None:
        """Begin a session that may reach ``positions``; ``wire.messages.Open`` says what the rest means.

        Raises:
            SessionFailed: no session or no page is free, or the stages are being started again.
        """
        self._check_running()
        self.ledger.open(key, tenant, positions, prompt, monotonic(), replay=replayed, expected=expected or None)
        self._of[key] = Session(key, deliver)
        if replayed:
            self._metrics.replays.inc()
            self._metrics.replayed_rows.inc(prompt)

    def resume(self, old: Key, new: Key, position: int, deliver: Deliver) -> None:
        """Let session ``old`` go on as ``new`` from ``position``, and forget what else it had asked for.

        Raises:
            SessionFailed: there is no such session, or its rows up to ``position`` have not been computed.
        """
        before = self._of.get(old)
        if before is None:
            raise SessionFailed(Code.UNKNOWN_SESSION, "that session is not kept here any more")
        if position > min(before.done, before.length):
            raise SessionFailed(Code.BAD_POSITION, f"only {before.done} positions of that session are here")
        table = self.ledger.pages.table(old)
        self.ledger.resume(old, new, position, self.ledger.entries[old].positions, monotonic())
        # A new object: what a step under way still does for the old one finds nobody to deliver to.
        del self._of[old]
        self._of[new] = Session(new, deliver, position, position)
        self._forget_work(before)
        self.upkeep.leave(before, table, position)
        self._metrics.resumes.inc()

    def fork(self, source: Key, key: Key, position: int, deliver: Deliver) -> None:
        """Begin session ``key`` with the first ``position`` positions of ``source``, whose rows have been computed.

        Their keys and values are copied, once: what lies in one run of pages is read in place by every step, and
        shared pages would make each of them as dear as the copy is.

        Raises:
            SessionFailed: as ``open`` does, or there is no such session, or it has not come so far.
        """
        self._check_running()
        self.ledger.check_fork(source, key, position, monotonic())
        there = self.scheduler.goes_back_to(source, self._of[source].done)
        if position > there:
            raise SessionFailed(Code.BAD_POSITION, f"only {there} positions of that session have been computed")
        pages, entries = self.ledger.pages, self.ledger.entries
        tenant = entries[source].tenant
        to_copy = sum(each.positions for each in self.upkeep.moved if entries[each.session.key].tenant == tenant)
        if to_copy and to_copy + position > COPIED_POSITIONS:
            raise full("too many forks at once")
        while pages.needed(position) > pages.free:
            found = victim(entries, pages)
            if found is None or found[1] is SessionState.OPEN or found[0] == source:
                raise full("no room for a fork")
            self.end(found[0], SessionFailed(Code.EVICTED, "its pages were needed"))
        self.ledger.fork(source, key, position, monotonic())
        session = self._of[key] = Session(key, deliver, position)
        moves = copied(pages.runs(source), pages.runs(key), pages.page_positions, position)
        self.upkeep.fork(session, pages.table(key), moves, position)
        self._metrics.forks.inc()

    def works_for(self, key: Key, request_id: str) -> None:
        """Say for which request an open session works from now on; only logs tell it."""
        self._of[key].request_id = request_id

    def admit(
        self, key: Key, sequence: int, position: int, rows: int, want: int, parents: Sequence[int] | None = None
    ) -> Queued:
        """Take in a forward of ``rows`` new positions before its rows are there. The last ``want`` of them are to be
        answered. With ``parents`` they are nodes behind ``position``; each follows the node it names, -1 being the last
        position.

        Raises:
            SessionFailed: a rule is broken, see ``Ledger``.
        """
        parked = self._is_parked(key)
        branching = self.ledger.forward(key, sequence, position, rows, want, monotonic(), parents)
        if parked:
            self._metrics.prefix_rows.inc(position)
        return Queued(self._of[key], sequence, rows, want, parents is not None, branching)

    def queue(self, forward: Queued, hidden: torch.Tensor) -> None:
        """Have the rows ``hidden [rows, hidden]`` of an admitted forward computed; the session's ``deliver`` gets the
        answer. Does nothing where the session has ended meanwhile."""
        session, now = forward.session, monotonic()
        if not self.holds(session):
            return
        forward.hidden, forward.arrived = hidden, now
        session.waiting[forward.sequence] = forward
        tenant = self.ledger.entries[session.key].tenant
        self.scheduler.add(session.key, forward.sequence, forward.rows, tenant, forward.nodes)
        self._gathering.arrived(session.key, now)
        self.work.set()

    def forward(
        self,
        key: Key,
        sequence: int,
        position: int,
        hidden: torch.Tensor,
        want: int,
        parents: Sequence[int] | None = None,
    ) -> None:
        """``admit`` a forward, and ``queue`` its rows at once. Raises ``SessionFailed``."""
        self.queue(self.admit(key, sequence, position, hidden.shape[0], want, parents), hidden)

    def truncate(self, key: Key, position: int) -> None:
        """Go back to ``position``, in order with the forwards. Raises ``SessionFailed``."""
        parked = self._is_parked(key)
        self.ledger.truncate(key, position, monotonic())
        if parked:
            self._metrics.prefix_rows.inc(position)
        self.scheduler.truncate(key, position)
        self.work.set()

    def keep(self, key: Key, nodes: Sequence[int]) -> None:
        """Make a path of nodes the next positions, in order with the forwards. Raises ``SessionFailed``."""
        self.ledger.keep(key, nodes, monotonic())
        self.scheduler.truncate(key, self.ledger.entries[key].position - len(nodes), tuple(nodes))
        self.work.set()

    def park(self, key: Key) -> None:
        """Keep a session for a next turn while there is room. Raises ``SessionFailed``."""
        for each in self.ledger.park(key, monotonic()):
            self.end(each, SessionFailed(Code.EVICTED, "a younger conversation took this one's place"))
        self._gathering.closed(key)
        self.scheduler.turn_over(key)
        self._fewer_open.set()

    def close(self, key: Key) -> None:
        """End a session and free its pages. Does nothing when there is none."""
        session = self._of.pop(key, None)
        if session is None:
            return
        self.upkeep.leave(session, self.ledger.pages.table(key), 0)
        self.ledger.close(key)
        self._forget_work(session)
        self._fewer_open.set()

    # ---- what happens to them ----

    def leave(self, connection: int) -> None:
        """Keep the sessions of a connection that is gone for a while, in case the device comes back for them."""
        for session in [each for key, each in self._of.items() if key[0] == connection]:
            self._forget_work(session)
            # Rows that wait will be sent again; a step under way may finish what it has begun.
            there = min(session.done, session.length)
            self._of[session.key] = Session(session.key, lambda _: None, there, there, under_way=session.under_way)
            self.ledger.entries[session.key].position = there
        for key in self.ledger.orphan(connection, monotonic()):
            self.end(key, SessionFailed(Code.EVICTED, "too many sessions wait for their devices"))
        self._fewer_open.set()

    def end(self, key: Key, failure: SessionFailed) -> None:
        """End a session from this side and tell its device."""
        session = self._of[key]
        if failure.code is Code.EVICTED:
            self._metrics.evictions.inc()
        self.close(key)
        session.deliver(failure)

    def end_all(self, failure: SessionFailed) -> None:
        """End every session."""
        for key in list(self._of):
            self.end(key, failure)

    def end_kept(self) -> None:
        """End every session that only waits for a next turn or a reconnect, since the server is about to stop."""
        for key in [key for key, entry in self.ledger.entries.items() if entry.state is not SessionState.OPEN]:
            self.end(key, SessionFailed(Code.DRAINING, "the server is stopping"))

    def end_idle(self) -> None:
        """End every session that nobody has come for in time."""
        for key in expired(self.ledger.entries, self.ledger.limits, monotonic()):
            self.end(key, SessionFailed(Code.EVICTED, "it was idle for too long"))

    async def emptied(self, within_s: float) -> None:
        """Wait until no session is open, ``within_s`` seconds at most."""

        async def none_open() -> None:
            while self.ledger.count(SessionState.OPEN):
                self._fewer_open.clear()
                await self._fewer_open.wait()

        with suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(none_open(), within_s)

    # ---- whose they are ----

    def __getitem__(self, key: Key) -> Session:
        return self._of[key]

    def __contains__(self, key: Key) -> bool:
        return key in self._of

    def __len__(self) -> int:
        return len(self._of)

    def holds(self, session: Session) -> bool:
        """Whether a session is still there: not closed, ended or resumed elsewhere."""
        return self._of.get(session.key) is session

    def _check_running(self) -> None:
        if self.lost:
            raise SessionFailed(Code.STAGE_LOST, "the layers are being started", retry_after_s=RETRY_AFTER_S)

    def _is_parked(self, key: Key) -> bool:
        entry = self.ledger.entries.get(key)
        return entry is not None and entry.state is SessionState.PARKED

    def _forget_work(self, session: Session) -> None:
        self.scheduler.remove(session.key)
        self.upkeep.forget(session)
        self._gathering.closed(session.key)
        if not self.scheduler.waiting_rows:
            self._gathering.began(monotonic(), False)  # Nothing is ready any more.
