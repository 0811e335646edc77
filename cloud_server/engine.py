"""Sessions and their work: plans one step after another, has a runner compute it, and hands out the results.

Everything here runs on the event loop and none of it is long: the matrix products are the runner's. Up to as many steps
as the runner has stages are under way at once, always in the order they were planned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import structlog
import torch

from cloud_server.budget import Due, step_budget
from cloud_server.gathering import Gathering
from cloud_server.ledger import Key, Ledger, State
from cloud_server.metrics import CloudMetrics
from cloud_server.monitor import LoadMonitor
from cloud_server.pool import PagedSpan
from cloud_server.runner import Ran, Runner, StageLost
from cloud_server.scheduler import Plan, Portion, Scheduler
from wire.errors import Code, SessionFailed

log = structlog.get_logger()

SWEEP_EVERY_S = 1.0
"""How often sessions that are over age are looked for."""

LEAST_WAIT_S = 0.0005
"""Shortest wait for a decoder that is due, so that one who is late is not asked after all the time."""

RESTART_AFTER_S = 1.0
"""Pause before the stages are started again when starting them has failed."""


@dataclass(frozen=True)
class Answer:
    """A completed forward: ``rows`` is ``[want, hidden]``, None when nothing was wanted; the times are those of the
    step that ran its last row, and of the wait before it."""

    rows: torch.Tensor | None
    queue_s: float
    step_s: float
    step_rows: int


Deliver = Callable[[int, "Answer | SessionFailed"], None]
"""Called on the event loop with a forward's sequence number and what became of it, or with -1 and why the whole session
has ended; must not raise."""


@dataclass
class _Waiting:
    hidden: torch.Tensor
    want: int
    arrived: float
    outputs: list[torch.Tensor] = field(default_factory=list)


@dataclass
class _Session:
    deliver: Deliver
    length: int = 0
    """Positions whose keys and values are in the pages, once the steps under way are done."""
    done: int = 0
    """Positions whose keys and values are there now."""
    waiting: dict[int, _Waiting] = field(default_factory=dict)


@dataclass
class _Item:
    """A portion in a step: the rows from ``start``, of which those below ``end`` still count when it is done."""

    portion: Portion[Key]
    session: _Session
    start: int
    end: int


class Engine:
    """Sessions over the layers that a runner holds.

    Args:
        ledger: the rules of admission and order, and the pages.
        step_rows: most rows in one step.
        slack: how much longer than the decoders' rows alone a step may take for the sake of prompt chunks.
    """

    def __init__(
        self, runner: Runner, ledger: Ledger, metrics: CloudMetrics, *, step_rows: int = 512, slack: float = 1.25
    ) -> None:
        self.ledger = ledger
        self.load = LoadMonitor()
        self.swept: Callable[[], None] = lambda: None
        self._runner = runner
        self._metrics = metrics
        self._step_rows = step_rows
        self._slack = slack
        self._scheduler = Scheduler[Key]()
        self._gathering = Gathering[Key]()
        self._sessions: dict[Key, _Session] = {}
        self._steps: set[asyncio.Task[None]] = set()
        self._under_way: list[_Item] = []
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._lost = True
        self._broken: BaseException | None = None
        self._running: asyncio.Task[None] | None = None

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
        if self._lost:
            raise SessionFailed(Code.STAGE_LOST, "the layers are being started", retry_after_s=RESTART_AFTER_S)
        self.ledger.open(key, tenant, positions, prompt, monotonic(), replay=replayed, expected=expected or None)
        self._sessions[key] = _Session(deliver)
        if replayed:
            self._metrics.replays.inc()
            self._metrics.replayed_rows.inc(prompt)
        self._note_idle()

    def resume(self, old: Key, new: Key, position: int, deliver: Deliver) -> None:
        """Go on with session ``old`` as ``new`` from ``position``; what else it had asked for is forgotten.

        Raises:
            SessionFailed: there is no such session, or its rows up to ``position`` have not been computed.
        """
        before = self._sessions.get(old)
        if before is None:
            raise SessionFailed(Code.UNKNOWN_SESSION, "that session is not kept here any more")
        if position > min(before.done, before.length):
            raise SessionFailed(Code.BAD_POSITION, f"only {before.done} positions of that session are here")
        self.ledger.resume(old, new, position, self.ledger.entries[old].positions, monotonic())
        # A new object: what a step under way still does for the old one finds nobody to deliver to.
        del self._sessions[old]
        self._sessions[new] = _Session(deliver, position, position)
        self._forget_work(old)
        self._metrics.resumes.inc()
        self._note_idle()

    def forward(self, key: Key, sequence: int, position: int, hidden: torch.Tensor, want: int) -> None:
        """Queue new positions ``hidden [rows, hidden]``; ``deliver`` gets the last ``want``; or ``SessionFailed``."""
        rows, now = hidden.shape[0], monotonic()
        kept = self._is_parked(key)
        self.ledger.forward(key, sequence, position, rows, want, now)
        if kept:
            self._take_up(position)
        self._sessions[key].waiting[sequence] = _Waiting(hidden, want, now)
        self._scheduler.add(key, sequence, rows, self.ledger.entries[key].tenant)
        self._gathering.arrived(key, now)
        self._wake.set()

    def truncate(self, key: Key, position: int) -> None:
        """Go back to ``position``, in order with the forwards. Raises ``SessionFailed``."""
        kept = self._is_parked(key)
        self.ledger.truncate(key, position, monotonic())
        if kept:
            self._take_up(position)
        self._scheduler.truncate(key, position)
        self._wake.set()

    def park(self, key: Key) -> None:
        """Keep a session for a next turn while there is room. Raises ``SessionFailed``."""
        for each in self.ledger.park(key, monotonic()):
            self._end(each, SessionFailed(Code.EVICTED, "a younger conversation took this one's place"))
        self._gathering.closed(key)
        self._note_idle()

    def close(self, key: Key) -> None:
        """End a session and give back its pages."""
        if self.ledger.close(key):
            del self._sessions[key]
            self._forget_work(key)
            self._note_idle()

    def leave(self, connection: int) -> None:
        """A connection is gone: keep its sessions for a while, in case the device comes back for them."""
        for key in [key for key in self._sessions if key[0] == connection]:
            self._forget_work(key)
            session = self._sessions[key]
            # Rows that wait will be sent again; a step under way may finish what it has begun.
            there = min(session.done, session.length)
            self._sessions[key] = _Session(_nobody, there, there)
            self.ledger.entries[key].position = there
        for key in self.ledger.orphan(connection, monotonic()):
            self._end(key, SessionFailed(Code.EVICTED, "too many sessions wait for their devices"))
        self._note_idle()

    def close_kept(self) -> None:
        """End every session that only waits for a next turn or a reconnect: the server is about to stop."""
        for key in [key for key, entry in self.ledger.entries.items() if entry.state is not State.OPEN]:
            self._end(key, SessionFailed(Code.DRAINING, "the server is stopping"))

    async def emptied(self, within_s: float) -> bool:
        """Wait until no session is open; False when some still are after ``within_s`` seconds."""
        try:
            await asyncio.wait_for(self._idle.wait(), within_s)
        except (TimeoutError, asyncio.TimeoutError):
            return False
        return True

    # ---- what operators see ----

    @property
    def waiting_rows(self) -> int:
        """Rows not yet in any step."""
        return self._scheduler.waiting_rows

    @property
    def waiting_sessions(self) -> int:
        """Sessions with rows not yet in any step."""
        return self._scheduler.waiting_sessions

    @property
    def alive(self) -> bool:
        """Whether steps can be run now."""
        return self._running is not None and not self._running.done() and not self._lost

    @property
    def depth(self) -> int:
        """Steps that may be under way at once (the paper's pipeline length P)."""
        return self._runner.depth

    # ---- the loop ----

    async def run(self) -> None:
        """Plan, run, deliver, for ever."""
        self._running = asyncio.current_task()
        sweeping = asyncio.create_task(self._sweep())
        sweeping.add_done_callback(self._look_for_mistakes)
        try:
            await self._start()
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._broken is not None:
                    raise self._broken  # A mistake of ours: the server is not healthy any more and says so.
                if self._lost:
                    await self._restart()
                while len(self._steps) < self._runner.depth and not self._lost:
                    if not self._begin():
                        break
        except Exception as error:
            log.error("the engine has ended", error=type(error).__name__, why=str(error))
            raise
        finally:
            self._lost = True
            for key in list(self._sessions):
                self._end(key, SessionFailed(Code.STAGE_LOST, "the server is stopping"))
            for task in (sweeping, *self._steps):
                task.cancel()
            await asyncio.gather(sweeping, *self._steps, return_exceptions=True)
            await self._runner.stop()

    def _look_again_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)

    def _begin(self) -> bool:
        """Begin the next step; False when nothing waits, or when it is better to wait for others."""
        now = monotonic()
        wait_s = self._gathering.wait_s(now, self.load.eta)
        if wait_s > 0:
            self._look_again_in(wait_s)
            return False
        due = Due(*self._gathering.due(now))
        budget = step_budget(self.load.g, self._scheduler.demand, due, self._slack, self._step_rows)
        if budget is None:
            self._look_again_in(max(due.next_s, LEAST_WAIT_S))
            return False
        plan = self._scheduler.plan(budget)
        if not plan.portions and not plan.truncations:
            return False
        batch = self._take_pages(plan)
        self._gathering.began(monotonic(), bool(self._scheduler.waiting_rows))
        if batch:
            # Rows and pages are looked up now: by the time the task runs, a session may have been closed. And the step
            # is under way from now on: the next may be planned, with truncations, before the task runs.
            self._under_way += batch
            task = asyncio.create_task(self._step(batch, *self._inputs(batch)))
            self._steps.add(task)
            task.add_done_callback(self._step_done)
        return True

    def _take_pages(self, plan: Plan[Key]) -> list[_Item]:
        pages = self.ledger.pages
        for each in plan.truncations:
            session = self._sessions[each.key]
            session.length = each.position
            session.done = min(session.done, each.position)
            for item in self._under_way:
                if item.session is session:
                    item.end = min(item.end, each.position)
            pages.truncate(each.key, each.position)
        batch = []
        for portion in plan.portions:
            if portion.key not in self._sessions:
                continue  # Ended to make room for another of this plan.
            session = self._sessions[portion.key]
            if self._make_room(portion.key, session.length + portion.rows):
                start, session.length = session.length, session.length + portion.rows
                batch.append(_Item(portion, session, start, session.length))
        return [item for item in batch if self._sessions.get(item.portion.key) is item.session]

    def _make_room(self, key: Key, positions: int) -> bool:
        """Pages for a session, others being ended for it where they must; False when it was ended itself."""
        while not self.ledger.pages.extend(key, positions):
            found = self.ledger.victim()
            victim, state = found if found is not None else (key, State.OPEN)
            if state is State.OPEN:
                self._metrics.preemptions.inc()
                log.info("session preempted", connection=victim[0], session=victim[1])
                self._end(
                    victim, SessionFailed(Code.PREEMPTED, "its pages went to an older session", retry_after_s=0.5)
                )
            else:
                self._end(victim, SessionFailed(Code.EVICTED, "its pages were needed"))
            if victim == key:
                return False
        return True

    def _inputs(self, batch: Sequence[_Item]) -> tuple[list[torch.Tensor], list[PagedSpan]]:
        hidden, spans = [], []
        for item in batch:
            portion = item.portion
            rows = item.session.waiting[portion.sequence].hidden
            hidden.append(rows if portion.rows == len(rows) else rows[portion.begin : portion.begin + portion.rows])
            needed = self.ledger.pages.needed(item.start + portion.rows)
            # A copy: while the step is under way, the table may grow, shrink or go.
            table = tuple(self.ledger.pages.table(portion.key)[:needed])
            spans.append(PagedSpan(table, item.start, portion.rows))
        return hidden, spans

    async def _step(self, batch: Sequence[_Item], hidden: Sequence[torch.Tensor], spans: Sequence[PagedSpan]) -> None:
        began = monotonic()
        try:
            ran = await self._runner.run(hidden, spans)
        except StageLost:
            self._lost = True
        except Exception as error:  # Whatever it is, it ends the sessions of this step and no others.
            cause = error.__cause__ or error
            log.error("step failed", error=type(cause).__name__, sessions=len(batch))
            for item in batch:
                if self._sessions.get(item.portion.key) is item.session:
                    self._end(item.portion.key, SessionFailed(Code.INTERNAL, "the step that held this session failed"))
        else:
            self._count(ran)
            self._settle(batch, ran, began)
        finally:
            done = {id(item) for item in batch}
            self._under_way = [item for item in self._under_way if id(item) not in done]

    def _step_done(self, task: asyncio.Task[None]) -> None:
        self._steps.discard(task)
        self._look_for_mistakes(task)

    def _look_for_mistakes(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = error
        self._wake.set()

    def _settle(self, batch: Sequence[_Item], ran: Ran, began: float) -> None:
        begin, step_rows = 0, ran.outputs.shape[0]
        now = monotonic()
        for item, finite in zip(batch, ran.finite, strict=True):
            portion, session = item.portion, item.session
            rows = ran.outputs[begin : begin + portion.rows]
            begin += portion.rows
            if self._sessions.get(portion.key) is not session:
                continue  # Closed, ended or resumed elsewhere while the step ran.
            if not finite:
                self._end(portion.key, SessionFailed(Code.NOT_FINITE, "these rows hold or became NaN or infinity"))
                continue
            session.done = max(session.done, item.end)
            work = session.waiting[portion.sequence]
            if work.want:
                work.outputs = [rows] if rows.shape[0] >= work.want else [*work.outputs, rows]
            if not portion.last:
                continue
            del session.waiting[portion.sequence]
            self.ledger.answered(portion.key, work.hidden.shape[0], now)
            if work.want:
                self._gathering.answered(portion.key, now)
            self._metrics.queue_seconds.observe(began - work.arrived)
            wanted = _last_rows(work.outputs, work.want)
            session.deliver(portion.sequence, Answer(wanted, began - work.arrived, ran.seconds, step_rows))

    def _count(self, ran: Ran) -> None:
        rows = ran.outputs.shape[0]
        self.load.observe(rows, ran.seconds)
        self._metrics.step_seconds.observe(ran.seconds)
        self._metrics.step_rows.observe(rows)

    async def _restart(self) -> None:
        """The stages are gone, and every session's keys and values with them: end all, begin anew."""
        if self._steps:
            await asyncio.gather(*self._steps, return_exceptions=True)
        log.error("a stage is gone, starting the stages again", sessions=len(self._sessions))
        for key in list(self._sessions):
            self._end(key, SessionFailed(Code.STAGE_LOST, "a part of the layers went away", retry_after_s=1.0))
        await self._start()
        self._metrics.stage_restarts.inc()

    async def _start(self) -> None:
        """Start the runner, again and again until it runs."""
        while self._lost:
            try:
                await self._runner.start()
                self._lost = False
            except (StageLost, OSError, RuntimeError) as error:
                log.error("the stages could not be started", error=type(error).__name__, why=str(error))
                await asyncio.sleep(RESTART_AFTER_S)

    async def _sweep(self) -> None:
        checked = True
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            if not self._lost and not self._runner.whole:
                self._lost = True  # Noticed while nothing runs: whoever comes next need not wait for it.
                self._wake.set()
            if self.ledger.entries:
                checked = False
            elif not checked:
                self.ledger.pages.check()  # Nobody holds any: a page that is lost now is lost for good.
                checked = True
            for key in self.ledger.expired(monotonic()):
                self._end(key, SessionFailed(Code.EVICTED, "it was idle for too long"))
            self.swept()

    def _end(self, key: Key, failure: SessionFailed) -> None:
        """End a session from this side and tell its device."""
        session = self._sessions[key]
        if failure.code is Code.EVICTED:
            self._metrics.evictions.inc()
        self.close(key)
        session.deliver(-1, failure)

    def _is_parked(self, key: Key) -> bool:
        entry = self.ledger.entries.get(key)
        return entry is not None and entry.state is State.PARKED

    def _take_up(self, position: int) -> None:
        """A parked session goes on from ``position``."""
        self._metrics.prefix_rows.inc(position)
        self._note_idle()

    def _forget_work(self, key: Key) -> None:
        self._scheduler.remove(key)
        self._gathering.closed(key)
        if not self._scheduler.waiting_rows:
            self._gathering.began(monotonic(), False)  # Nothing is ready any more.

    def _note_idle(self) -> None:
        busy = any(entry.state is State.OPEN for entry in self.ledger.entries.values())
        self._idle.clear() if busy else self._idle.set()


def _nobody(sequence: int, outcome: Answer | SessionFailed) -> None:
    """Deliver to a connection that is gone."""


def _last_rows(outputs: list[torch.Tensor], want: int) -> torch.Tensor | None:
    """The last ``want`` rows of a forward that ran in one or more portions; a view where one portion holds them."""
    if want == 0:
        return None
    if outputs[-1].shape[0] >= want:
        return outputs[-1][-want:]
    return torch.cat(outputs)[-want:]
