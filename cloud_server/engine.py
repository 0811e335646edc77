"""The sessions' work: plans one step after another, has a runner compute it, and hands out the results.

Everything here runs on the event loop and none of it is long: the matrix products are the runner's. Up to as many steps
as the runner has stages are under way at once, always in the order they were planned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import structlog
import torch

from cloud_server.budget import Due, step_budget
from cloud_server.ledger import Key, Ledger, State
from cloud_server.metrics import CloudMetrics
from cloud_server.monitor import LoadMonitor
from cloud_server.pool import PagedSpan
from cloud_server.runner import Ran, Runner, StageLost
from cloud_server.scheduler import SHORT_ROWS, Budget, Plan, Portion, Truncation
from cloud_server.sessions import Answer, Session, Sessions
from split_model.tree import Tree
from wire.errors import Code, SessionFailed

log = structlog.get_logger()

SWEEP_EVERY_S = 1.0
"""How often sessions that are over age are looked for."""

LEAST_WAIT_S = 0.0005
"""Shortest wait for a decoder that is due, so that one who is late is not asked after all the time."""

RESTART_AFTER_S = 1.0
"""Pause before the stages are started again when starting them has failed."""


@dataclass
class _Item:
    """A portion in a step: the rows from ``start``, of which those below ``end`` still count when it is done."""

    portion: Portion[Key]
    session: Session
    start: int
    end: int


@dataclass(frozen=True)
class _Move:
    """Kept rows that still have to be moved, as slots ``(from, to)``."""

    key: Key
    session: Session
    slots: tuple[tuple[int, int], ...]


class Engine(Sessions):
    """Sessions, and the steps that compute their rows in the layers that a runner holds.

    Args:
        step_rows: most rows in one step.
        slack: how much longer than without prompt chunks a decoder's answer may take, see ``step_budget``; 0: as long
            as it takes, so that chunks are cut by ``step_rows`` alone and nobody is waited for to protect them.
    """

    def __init__(
        self, runner: Runner, ledger: Ledger, metrics: CloudMetrics, *, step_rows: int = 512, slack: float = 1.25
    ) -> None:
        super().__init__(ledger, metrics)
        self.load = LoadMonitor()
        self.swept: Callable[[], None] = lambda: None
        self._runner = runner
        self._step_rows = step_rows
        self._slack = slack
        self._steps: set[asyncio.Task[None]] = set()
        self._under_way: list[_Item] = []
        self._moves: list[_Move] = []
        """What the next step begins with, whosever rows it has: until then nobody else can write to these slots."""
        self._timer: asyncio.TimerHandle | None = None
        self._broken: BaseException | None = None
        self._running: asyncio.Task[None] | None = None

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
        budget = Budget(self._step_rows, self._step_rows)
        if self._slack:
            due = Due(*self._gathering.due(now, self.load.g), self._gathering.away_s)
            allowed = step_budget(self.load.g, self._scheduler.demand, due, self._slack, self._step_rows)
            if allowed is None:
                self._look_again_in(max(due.next_s, LEAST_WAIT_S))
                return False
            budget = allowed
        plan = self._scheduler.plan(budget)
        if not plan.portions and not plan.truncations:
            return False
        batch = self._take_pages(plan)
        self._gathering.began(monotonic(), bool(self._scheduler.waiting_rows))
        if batch:
            # Rows and pages are looked up now: by the time the task runs, a session may have been closed. And the step
            # is under way from now on: the next may be planned, with truncations, before the task runs.
            self._under_way += batch
            moves, self._moves = self._moves, []
            task = asyncio.create_task(self._step(batch, moves, *self._inputs(batch)))
            self._steps.add(task)
            task.add_done_callback(self._step_done)
        return True

    def _take_pages(self, plan: Plan[Key]) -> list[_Item]:
        pages = self.ledger.pages
        for each in plan.truncations:
            session = self._sessions[each.key]
            self._keep_nodes(each, session)
            session.length = each.position + len(each.nodes)
            session.done = min(session.done, each.position)
            for item in self._under_way:
                if item.session is session:
                    item.end = min(item.end, each.position)
            pages.truncate(each.key, session.length)
        batch = []
        for portion in plan.portions:
            if portion.key not in self._sessions:
                continue  # Ended to make room for another of this plan.
            session = self._sessions[portion.key]
            if self._make_room(portion.key, session.length + portion.rows):
                start = session.length
                if session.waiting[portion.sequence].parents is None:  # Nodes count once they are kept.
                    session.length += portion.rows
                batch.append(_Item(portion, session, start, session.length))
        return [item for item in batch if self._sessions.get(item.portion.key) is item.session]

    def _keep_nodes(self, back: Truncation[Key], session: Session) -> None:
        """Have the keys and values of kept nodes moved to where their positions are now, as its pages are now."""
        size, table = self.ledger.pages.page_positions, self.ledger.pages.table(back.key) if back.nodes else ()

        def slot(position: int) -> int:
            page, offset = divmod(position, size)
            return table[page] * size + offset

        moves = [
            (slot(back.position + node), slot(back.position + place))
            for place, node in enumerate(back.nodes)
            if node != place
        ]
        if moves:
            self._moves.append(_Move(back.key, session, tuple(moves)))

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
        hidden: list[torch.Tensor] = []
        spans = []
        for items in _of_spans(batch):
            first, total = items[0], 0
            for item in items:
                portion, rows = item.portion, item.session.waiting[item.portion.sequence].hidden
                hidden.append(rows if portion.rows == len(rows) else rows[portion.begin : portion.begin + portion.rows])
                total += portion.rows
            key, parents = first.portion.key, first.session.waiting[first.portion.sequence].parents
            needed = self.ledger.pages.needed(first.start + total)
            # A copy: while the step is under way, the table may grow, shrink or go.
            table = tuple(self.ledger.pages.table(key)[:needed])
            branching = None if parents is None else Tree(first.start).add(parents)
            spans.append(PagedSpan(table, first.start, total, branching))
        return hidden, spans

    async def _step(
        self,
        batch: Sequence[_Item],
        moves: Sequence[_Move],
        hidden: Sequence[torch.Tensor],
        spans: Sequence[PagedSpan],
    ) -> None:
        began = monotonic()
        try:
            ran = await self._runner.run(hidden, spans, [pair for move in moves for pair in move.slots])
        except StageLost:
            self._lost = True
        except Exception as error:  # Whatever it is, it ends the sessions of this step and no others.
            cause = error.__cause__ or error
            log.error("step failed", error=type(cause).__name__, sessions=len(batch))
            held = [(item.portion.key, item.session) for item in batch] + [(move.key, move.session) for move in moves]
            for key, session in held:
                if self._sessions.get(key) is session:
                    self._end(key, SessionFailed(Code.INTERNAL, "the step that held this session failed"))
        else:
            self._count(ran, spans)
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
        of_spans, finite = iter(ran.finite), True
        before: Session | None = None
        for item in batch:
            portion, session = item.portion, item.session
            if session is not before:
                before, finite = session, next(of_spans)
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
            entry = self.ledger.entries.get(portion.key)
            if work.want and entry is not None and not entry.prompt:  # Behind a chunk nobody decodes yet.
                self._gathering.answered(portion.key, now, more=bool(session.waiting))
            self._metrics.queue_seconds.observe(began - work.arrived)
            wanted = _last_rows(work.outputs, work.want)
            session.deliver(portion.sequence, Answer(wanted, began - work.arrived, ran.seconds, step_rows))

    def _count(self, ran: Ran, spans: Sequence[PagedSpan]) -> None:
        rows = ran.outputs.shape[0]
        attended = [0.0, 0.0]
        for span in spans:
            attended[span.rows > SHORT_ROWS] += span.rows * (span.start + span.rows / 2)
        reads, pairs = attended
        self.load.observe(rows, ran.seconds, pairs, reads)
        self._metrics.step_seconds.observe(ran.seconds)
        self._metrics.step_seconds_squares.inc(ran.seconds**2)
        self._metrics.step_rows.observe(rows)

    async def _restart(self) -> None:
        """The stages are gone, and every session's keys and values with them: end all, begin anew."""
        if self._steps:
            await asyncio.gather(*self._steps, return_exceptions=True)
        self._moves.clear()
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


def _of_spans(batch: Sequence[_Item]) -> list[list[_Item]]:
    """The items of a step by the spans they are in: those of a session are one behind the other, and in one."""
    spans: list[list[_Item]] = []
    for item in batch:
        if spans and spans[-1][0].session is item.session:
            spans[-1].append(item)
        else:
            spans.append([item])
    return spans


def _last_rows(outputs: list[torch.Tensor], want: int) -> torch.Tensor | None:
    """The last ``want`` rows of a forward that ran in one or more portions; a view where one portion holds them."""
    if want == 0:
        return None
    if outputs[-1].shape[0] >= want:
        return outputs[-1][-want:]
    return torch.cat(outputs)[-want:]
