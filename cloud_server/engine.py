"""The middle layers and everybody's KV cache: runs one planned step after another on a thread of its own.

The event loop only queues work and hands out results, so that frames keep flowing while the matrix products run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter

import structlog
import torch

from cloud_server.ledger import Key, Ledger
from cloud_server.metrics import CloudMetrics
from cloud_server.scheduler import Portion, Scheduler
from split_model.kv_cache import KVCache
from split_model.stack import Span, Stack
from wire.errors import Code, SessionFailed

log = structlog.get_logger()

SMOOTHING = 0.8
"""Weight of the past in the running mean of the step time (the paper's alpha, Eq. 1 and 2)."""


@dataclass(frozen=True)
class Answer:
    """A completed forward: ``rows`` is ``[want, hidden]``, None when nothing was wanted; the times are those of the
    step that ran its last row, and of the wait before it."""

    rows: torch.Tensor | None
    queue_s: float
    step_s: float
    step_rows: int


Deliver = Callable[[int, "Answer | SessionFailed"], None]
"""Called on the event loop with a forward's sequence number and what became of it; must not raise."""


@dataclass
class _Waiting:
    hidden: torch.Tensor
    want: int
    arrived: float
    outputs: list[torch.Tensor] = field(default_factory=list)


@dataclass
class _Session:
    cache: KVCache
    deliver: Deliver
    waiting: dict[int, _Waiting] = field(default_factory=dict)


@dataclass
class _Outcome:
    """What a step did: its time, and the sessions it ended."""

    seconds: float = 0.0
    failed: dict[Key, SessionFailed] = field(default_factory=dict)


class Engine:
    """Sessions over one stack of layers.

    Args:
        stack: the layers; ``[rows, hidden]`` in, the same out.
        ledger: the rules of admission and order, kept before any memory is taken.
        step_rows: rows in one step.
    """

    def __init__(self, stack: Stack, ledger: Ledger, step_rows: int, metrics: CloudMetrics) -> None:
        self.ledger = ledger
        self.step_s = 0.0
        self._stack = stack
        self._step_rows = step_rows
        self._metrics = metrics
        self._scheduler = Scheduler[Key]()
        self._sessions: dict[Key, _Session] = {}
        self._ready = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._running: asyncio.Task[None] | None = None
        self._compute = ThreadPoolExecutor(1, thread_name_prefix="step")

    def open(self, key: Key, positions: int, deliver: Deliver) -> None:
        """Begin a session. Raises ``SessionFailed``."""
        self.ledger.open(key, positions)
        self._sessions[key] = _Session(self._stack.new_cache(positions), deliver)
        self._emptied.clear()

    def forward(self, key: Key, sequence: int, position: int, hidden: torch.Tensor, want: int) -> None:
        """Queue new positions ``hidden [rows, hidden]``; ``deliver`` gets the last ``want``; or ``SessionFailed``."""
        rows = hidden.shape[0]
        self.ledger.forward(key, sequence, position, rows, want)
        self._sessions[key].waiting[sequence] = _Waiting(hidden, want, perf_counter())
        self._scheduler.add(key, sequence, rows)
        self._ready.set()

    def truncate(self, key: Key, position: int) -> None:
        """Go back to ``position``, in order with the forwards. Raises ``SessionFailed``."""
        self.ledger.truncate(key, position)
        self._scheduler.truncate(key, position)
        self._ready.set()

    def close(self, key: Key) -> None:
        """End a session and free its memory (once the step that is running no longer needs it)."""
        if self.ledger.close(key):
            del self._sessions[key]
            self._scheduler.remove(key)
            if not self._sessions:
                self._emptied.set()

    def close_device(self, connection: int) -> None:
        """End every session of one connection."""
        for key in [key for key in self._sessions if key[0] == connection]:
            self.close(key)

    async def emptied(self, within_s: float) -> bool:
        """Wait until no session is open; False when some still are after ``within_s`` seconds."""
        try:
            await asyncio.wait_for(self._emptied.wait(), within_s)
        except (TimeoutError, asyncio.TimeoutError):
            return False
        return True

    @property
    def waiting_rows(self) -> int:
        """Rows not yet in any step."""
        return self._scheduler.waiting_rows

    @property
    def kv_bytes(self) -> int:
        """Bytes of all KV caches as allocated now."""
        return sum(session.cache.nbytes for session in self._sessions.values())

    async def run(self) -> None:
        """Plan, run, deliver, for ever."""
        loop = asyncio.get_running_loop()
        self._running = asyncio.current_task()
        while True:
            await self._ready.wait()
            plan = self._scheduler.plan(self._step_rows)
            if not plan.portions and not plan.truncations:
                self._ready.clear()
                continue
            # Sessions are looked up here: while the step runs, their keys may come to mean others.
            back = [(self._sessions[each.key].cache, each.position) for each in plan.truncations]
            batch = [(portion, self._sessions[portion.key]) for portion in plan.portions]
            began = perf_counter()
            outcome = await loop.run_in_executor(self._compute, self._step, back, batch)
            if batch:
                self._count(outcome.seconds, plan.rows)
            for portion, session in batch:
                self._settle(portion, session, outcome, began, plan.rows)

    @property
    def alive(self) -> bool:
        """Whether steps are being run."""
        return self._running is not None and not self._running.done()

    def stop(self) -> None:
        """End the compute thread."""
        self._compute.shutdown(wait=False, cancel_futures=True)

    def _step(self, back: list[tuple[KVCache, int]], batch: list[tuple[Portion[Key], _Session]]) -> _Outcome:
        """Truncations, then one ragged forward, on the compute thread; outputs are left in ``waiting``."""
        outcome = _Outcome()
        began = perf_counter()
        try:
            with torch.inference_mode():
                for cache, position in back:
                    cache.truncate(position)
                self._forward(batch, outcome)
        except Exception as error:  # Whatever it is, it ends the sessions of this step and no others.
            log.error("step failed", error=type(error).__name__, sessions=len(batch))
            failure = SessionFailed(Code.INTERNAL, "the step that held this session failed")
            outcome.failed = {portion.key: failure for portion, _ in batch}
        outcome.seconds = perf_counter() - began
        return outcome

    def _forward(self, batch: list[tuple[Portion[Key], _Session]], outcome: _Outcome) -> None:
        sound = []
        for portion, session in batch:
            hidden = session.waiting[portion.sequence].hidden[portion.begin : portion.begin + portion.rows]
            if bool(torch.isfinite(hidden).all()):
                sound.append((portion, session, hidden))
            else:
                outcome.failed[portion.key] = SessionFailed(Code.NOT_FINITE, "the hidden states hold NaN or infinity")
        if not sound:
            return
        spans = [Span(session.cache, portion.rows) for portion, session, _ in sound]
        outputs = self._stack.forward(torch.cat([hidden for _, _, hidden in sound]), spans)
        begin = 0
        for portion, session, _ in sound:
            session.waiting[portion.sequence].outputs.append(outputs[begin : begin + portion.rows])
            begin += portion.rows

    def _settle(
        self, portion: Portion[Key], session: _Session, outcome: _Outcome, began: float, step_rows: int
    ) -> None:
        key = portion.key
        if self._sessions.get(key) is not session:
            return  # Closed while the step ran.
        failure = outcome.failed.get(key)
        if failure is not None:
            self.close(key)
            session.deliver(portion.sequence, failure)
            return
        if not portion.last:
            return
        work = session.waiting.pop(portion.sequence)
        self.ledger.answered(key, work.hidden.shape[0])
        rows = _last_rows(work.outputs, work.want)
        if rows is not None and not bool(torch.isfinite(rows).all()):
            self.close(key)
            session.deliver(portion.sequence, SessionFailed(Code.NOT_FINITE, "the layers overflowed on these values"))
            return
        session.deliver(portion.sequence, Answer(rows, began - work.arrived, outcome.seconds, step_rows))

    def _count(self, seconds: float, rows: int) -> None:
        self.step_s = seconds if not self.step_s else SMOOTHING * self.step_s + (1 - SMOOTHING) * seconds
        self._metrics.step_seconds.observe(seconds)
        self._metrics.step_rows.observe(rows)


def _last_rows(outputs: list[torch.Tensor], want: int) -> torch.Tensor | None:
    """The last ``want`` rows of a forward that ran in one or more portions; a view where one portion holds them."""
    if want == 0:
        return None
    if outputs[-1].shape[0] >= want:
        return outputs[-1][-want:]
    return torch.cat(outputs)[-want:]
