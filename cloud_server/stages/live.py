"""One life of a pipeline's stages: the processes of this machine, and the two threads of the first stage."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic, perf_counter

import structlog
import torch

from cloud_server.cache.pool import Moves
from cloud_server.cache.span import PagedSpan
from cloud_server.stages.layer_step import LayerStep, Ran, StepFailed, finite_spans
from cloud_server.stages.link import Link
from cloud_server.stages.plan import ALL_LOADED, LOADED, LOADED_WITHIN_S
from cloud_server.stages.processes import StageProcesses
from cloud_server.stages.runner import StageLost
from cloud_server.stages.step_wire import StepHead
from peers.board import PeerLost
from peers.group import Group

IDLE_SEND_EVERY_S = 3.0
"""When nothing is to be computed, an empty step goes round this often: silence then means that a stage hangs."""

LOADED_LOOKED_FOR_EVERY_S = 0.05
SAY_LOADING_EVERY_S = 10.0

END_WITHIN_S = 60.0
"""A thread of the first stage that has not ended by then never will."""

log = structlog.get_logger()


@dataclass(frozen=True)
class _Step:
    hidden: Sequence[torch.Tensor]
    spans: Sequence[PagedSpan]
    moves: Moves
    result: Future[Ran]


class StageHangs(Exception):
    """The first stage goes on computing though nobody wants it to. What it writes later could spoil the pages of new
    sessions, so nothing may be started in this process any more."""


class LivePipeline:
    """Stages that run until one of them is lost.

    One thread computes the first stage and sends; the other takes the results in, in the same order.

    Args:
        step: the first stage.
        group: what the stages are to each other; it ends with the first of them, and with this.
    """

    def __init__(self, step: LayerStep, group: Group) -> None:
        self.processes = StageProcesses()
        self._step = step
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._lock = threading.Lock()
        self._lost: str | None = None
        self._ending = False
        self._last = 0
        self._steps: dict[int, _Step] = {}
        self._queue: SimpleQueue[int | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        group.ended.add_done_callback(lambda ended: self.lose(ended.result()))
        self.processes.ended.add_done_callback(lambda ended: self.lose(ended.result()))

    @property
    def whole(self) -> bool:
        """Whether no stage is known to be gone."""
        return self._lost is None

    async def loaded(self) -> None:
        """Wait until every stage has its layers. Raises ``StageLost`` where one ends before it has, hangs, or has not
        come."""
        began = said = monotonic()
        waiting = list(range(1, self._group.size))
        while waiting:
            await asyncio.sleep(LOADED_LOOKED_FOR_EVERY_S)
            try:
                waiting = [rank for rank in waiting if not self._group.board.has([f"{LOADED}{rank}"])]
            except PeerLost as lost:
                raise StageLost(self._lost or str(lost)) from lost
            if waiting and monotonic() - began > LOADED_WITHIN_S:
                raise StageLost(f"stages {waiting} have not loaded within {LOADED_WITHIN_S:g} s")
            if waiting and monotonic() - said > SAY_LOADING_EVERY_S:
                log.info("stages are loading", waiting=len(waiting), not_here=self._group.missing)
                said = monotonic()
        self._group.board.post(ALL_LOADED, b"")

    def begin(self, link: Link) -> None:
        """Take steps from now on. Raises ``StageLost`` where a stage is gone already."""
        with self._lock:
            if self._lost is not None:
                raise StageLost(self._lost)
            self._link = link
        for name, work in (("stage-0", self._feed), ("stage-results", self._collect)):
            thread = threading.Thread(target=self._until_lost, args=(work, link), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def submit(self, hidden: Sequence[torch.Tensor], spans: Sequence[PagedSpan], moves: Moves) -> Future[Ran]:
        """Queue a step. Raises ``StageLost``."""
        result: Future[Ran] = Future()
        result.set_running_or_notify_cancel()  # Who waits may go away; the step goes on.
        with self._lock:
            if self._lost is not None:
                raise StageLost(self._lost)
            self._last += 1
            self._steps[self._last] = _Step(hidden, spans, moves, result)
            self._queue.put(self._last)
        return result

    def lose(self, why: str) -> None:
        """A stage is gone: end the others and all steps under way. On any thread; only the first call counts."""
        with self._lock:
            if self._lost is not None:
                return
            self._lost = why
            steps = list(self._steps.values())
            self._steps.clear()
        if not self._ending:
            log.error("the pipeline is lost", why=why, steps=len(steps))
        for step in steps:
            step.result.set_exception(StageLost(why))
        self._queue.put(None)
        self.processes.terminate()
        if self._link is not None:
            self._link.abort()
        with suppress(RuntimeError):  # The event loop has ended.
            self._loop.call_soon_threadsafe(self._group.end, why)

    def end(self) -> None:
        """End processes and threads, and wait for it: after this, nothing writes to the first stage's pages.

        Raises ``StageHangs`` where a thread has not ended within ``END_WITHIN_S``.
        """
        self._ending = True
        self.lose("the pipeline was stopped")
        self.processes.stop()
        deadline = monotonic() + END_WITHIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
            if thread.is_alive():
                raise StageHangs(f"{thread.name} has not ended within {END_WITHIN_S:g} s")
        self._link = None

    def _until_lost(self, work: Callable[[Link], None], link: Link) -> None:
        try:
            work(link)
        except Exception as error:  # Whatever it is, nobody would take the steps any more.
            log.debug("a stage does not answer", error=str(error))
            self.lose(f"a stage does not answer ({type(error).__name__})")

    def _feed(self, link: Link) -> None:
        """The first stage: computes and sends what is queued, and an empty step whenever nothing has been for long."""
        while True:
            try:
                number = self._queue.get(timeout=IDLE_SEND_EVERY_S)
            except Empty:
                link.send(StepHead(), [], None)
                continue
            step = self._steps.get(number) if number is not None else None
            if number is None or step is None:
                return  # Lost.
            began = perf_counter()
            try:
                rows = step.hidden[0] if len(step.hidden) == 1 else torch.cat(list(step.hidden))
                outputs = self._step(rows, step.spans, step.moves)
            except Exception as error:  # No other stage has heard of it.
                self._settle(number, error)
                continue
            head = StepHead(number, microseconds=round((perf_counter() - began) * 1e6))
            link.send(head, step.spans, outputs, step.moves)

    def _collect(self, link: Link) -> None:
        while True:
            head, _, outputs, _ = link.receive()
            step = self._steps.get(head.number)
            if step is None:
                continue  # An empty step, or lost.
            if outputs is None:
                self._settle(head.number, StepFailed(f"stage {head.failed} could not compute the step"))
            else:
                self._settle(head.number, Ran(outputs, finite_spans(outputs, step.spans), head.microseconds / 1e6))

    def _settle(self, number: int, outcome: Ran | Exception) -> None:
        with self._lock:
            step = self._steps.pop(number, None)
        if step is None:
            return  # Lost meanwhile.
        if isinstance(outcome, Ran):
            step.result.set_result(outcome)
        else:
            step.result.set_exception(outcome)
