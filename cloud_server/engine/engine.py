"""The loop: plans one step after another, has a runner compute it, and hands out the results.

Everything here runs on the event loop and none of it is long: the matrix products are the runner's. Up to as many steps
as the runner has stages are under way at once, always in the order they were planned.
"""

from __future__ import annotations

import asyncio
from time import monotonic

import structlog

from cloud_server.cache.moving import Key
from cloud_server.engine.entries import SessionState
from cloud_server.engine.ledger import Ledger
from cloud_server.engine.sessions import Sessions
from cloud_server.engine.steps import Step, Steps
from cloud_server.metrics import CloudMetrics
from cloud_server.schedule.budget import StepPace
from cloud_server.schedule.chunk_model import Conditions
from cloud_server.stages.runner import Runner, StageLost
from split_model.device import DeviceLost
from wire.errors import Code, SessionFailed
from wire.hello import CloudIdentity
from wire.limits import ITEM_BYTES

log = structlog.get_logger()

SWEEP_EVERY_S = 1.0
"""How often sessions that are over age are looked for."""

RESTART_AFTER_S = 1.0
"""Pause before the stages are started again when starting them has failed."""

TOLD_REQUESTS = 8
"""Ids of requests in a line about a step."""


class Engine:
    """The layers that a runner holds, and the steps that compute sessions' rows in them.

    Args:
        identity: what is served.
        step_rows, slack: see ``StepPace``.
    """

    def __init__(
        self,
        runner: Runner,
        ledger: Ledger,
        metrics: CloudMetrics,
        identity: CloudIdentity,
        *,
        step_rows: int = 512,
        slack: float = 1.25,
    ) -> None:
        self.ledger = ledger
        self.metrics = metrics
        self.identity = identity
        self.pace = StepPace[Key](step_rows, slack)
        self.sessions = Sessions(ledger, self.pace.gathering, metrics)
        self.steps = Steps(self.sessions, self.pace, metrics)
        self._runner = runner
        self._under_way: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._broken: BaseException | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether steps can be run now."""
        return self._running is not None and not self._running.done() and not self.sessions.lost

    @property
    def depth(self) -> int:
        """Steps that may be under way at once (the paper's pipeline length P)."""
        return self._runner.depth

    def conditions(self, up_bytes_s: float | None = None) -> Conditions:
        """Return the conditions for which a device cuts its prompts, given its upload bandwidth in bytes a second."""
        load, ledger = self.pace.load, self.ledger
        return Conditions(
            # With nobody else there, no batch is in progress that a chunk would have to wait for.
            mu=load.mu if ledger.count(SessionState.OPEN) > 1 else 0.0,
            g=load.g,
            pipeline=self.depth,
            row_bytes=self.identity.hidden_size * ITEM_BYTES[self.identity.dtype],
            up_bytes_s=up_bytes_s,
            cap_rows=ledger.limits.rows,
        )

    async def run(self) -> None:
        """Plan steps, run them and hand out what they give, for ever."""
        self._running = asyncio.current_task()
        sweeping = asyncio.create_task(self._sweep())
        sweeping.add_done_callback(self._look_for_mistakes)
        try:
            await self._start()
            while True:
                await self.sessions.work.wait()
                self.sessions.work.clear()
                if self._broken is not None:
                    raise self._broken  # A mistake of ours: the server is not healthy any more and says so.
                if self.sessions.lost:
                    await self._restart()
                while len(self._under_way) < self._runner.depth and not self.sessions.lost and self._begin():
                    pass
        except Exception as error:
            log.error("the engine has ended", error=type(error).__name__, why=str(error))
            raise
        finally:
            self.sessions.lost = True
            self.sessions.end_all(SessionFailed(Code.STAGE_LOST, "the server is stopping"))
            for task in (sweeping, *self._under_way):
                task.cancel()
            await asyncio.gather(sweeping, *self._under_way, return_exceptions=True)
            await self._runner.stop()

    def _begin(self) -> bool:
        """Begin the next step; False when nothing waits, or when it is better to wait for others."""
        budget, again_s = self.pace.next(self.sessions.scheduler.demand, monotonic())
        if budget is None:
            self._look_again_in(again_s)
            return False
        plan = self.sessions.scheduler.plan(budget)
        if not plan.portions and not plan.truncations:
            return False
        step = self.steps.make(plan)
        self.pace.gathering.began(monotonic(), bool(self.sessions.scheduler.waiting_rows))
        if step is not None:
            task = asyncio.create_task(self._run(step))
            self._under_way.add(task)
            task.add_done_callback(self._step_done)
        return True

    async def _run(self, step: Step) -> None:
        began = monotonic()
        try:
            ran = await self._runner.run(step.hidden, step.spans, step.moves)
        except StageLost:
            self.sessions.lost = True
            self.sessions.upkeep.unclean.failed(step.moves)
        except DeviceLost:
            raise  # No step can be run any more: the process has to begin anew.
        except Exception as error:  # Whatever it is, it ends the sessions of this step and no others.
            requests = [each.session.request_id for each in step.stretches[:TOLD_REQUESTS]]
            kind = type(error.__cause__ or error).__name__
            log.error("step failed", error=kind, sessions=len(step.stretches), request_ids=requests)
            self.steps.fail(step)
        else:
            self.steps.settle(step, ran, began)
        finally:
            for stretch in step.stretches:
                stretch.session.under_way.remove(stretch)

    def _step_done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._look_for_mistakes(task)

    def _look_for_mistakes(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = error
        self.sessions.work.set()

    def _look_again_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.sessions.work.set)

    async def _restart(self) -> None:
        """The stages are gone, and every session's keys and values with them: end all, begin anew."""
        await asyncio.gather(*self._under_way, return_exceptions=True)
        log.error("a stage is gone, starting the stages again", sessions=len(self.sessions))
        self.sessions.end_all(SessionFailed(Code.STAGE_LOST, "a part of the layers went away", retry_after_s=1.0))
        await self._start()
        self.metrics.stage_restarts.inc()

    async def _start(self) -> None:
        """Start the runner, again and again until it runs."""
        while self.sessions.lost:
            try:
                await self._runner.start()
                self.sessions.lost = False
            except (StageLost, OSError, RuntimeError) as error:
                log.error("the stages could not be started", error=type(error).__name__, why=str(error))
                await asyncio.sleep(RESTART_AFTER_S)

    async def _sweep(self) -> None:
        checked = True
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            if not self.sessions.lost and not self._runner.whole:
                self.sessions.lost = True  # Noticed while nothing runs: whoever comes next need not wait for it.
                self.sessions.work.set()
            if len(self.sessions):
                checked = False
            elif not checked:
                self.ledger.pages.check()  # Nobody holds any: a page that is lost now is lost for good.
                checked = True
            self.sessions.end_idle()
