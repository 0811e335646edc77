"""All devices of a benchmark in one: both ends of the model and many sessions on the cloud's engine, no network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from bench.runs import Run
from engine_callers import warmed_up

from cloud_server.build import build
from cloud_server.config import CloudConfig
from cloud_server.engine.engine import Engine
from cloud_server.engine.session import Answered
from cloud_server.stages.runner import LocalRunner
from split_model.checkpoint import Checkpoint
from split_model.stack import Embedding, Head
from wire.errors import SessionFailed

LAG_EVERY_S = 0.001
"""How often the event loop is asked how late it is."""

Result = TypeVar("Result")


def ours(checkpoint: Path, dtype: torch.dtype, sessions: int, positions: int, slack: float) -> Engine:
    """The cloud's own engine with all layers of a model, built as ``trilby cloud`` builds it."""
    return build(
        CloudConfig(
            model=str(checkpoint),
            split=0,
            tail=0,
            dtype="bfloat16" if dtype is torch.bfloat16 else "float32",
            max_sessions=sessions,
            max_model_len=positions,
            step_slack=slack,
        )
    ).engine


@dataclass
class _Session:
    key: tuple[int, int]
    positions: int
    sequence: int = 0
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


class Devices:
    """Sessions that choose the likeliest token each, ``new`` times.

    What a device does between an answer and its next row, head, argmax and embedding, runs on the thread that computes
    the engine's steps, so that all of torch in this process runs on one thread and has one team of OpenMP's. Head and
    embedding therefore take turns with the steps: the devices' work counts in full against ours, though devices do it
    on machines of their own. Answers that came in one turn of the loop go through it together.
    """

    def __init__(self, checkpoint: Path, dtype: torch.dtype, sessions: int, positions: int, slack: float) -> None:
        """Room for ``sessions`` sessions of ``positions`` positions at once; ``slack`` is the cloud's --step-slack."""
        opened = Checkpoint.open(checkpoint)
        self._loop = asyncio.new_event_loop()
        self._engine = ours(checkpoint, dtype, sessions, positions, slack)
        runner = self._engine._runner
        assert isinstance(runner, LocalRunner)
        self._compute = runner._compute
        self._embedding = self._compute.submit(Embedding.load, opened, dtype).result()
        # Not shared with the embedding: a packed matrix multiplies faster, and here nobody is short of memory.
        self._head = self._compute.submit(Head.load, opened, opened.spec, dtype).result()
        self._running = self._loop.create_task(self._engine.run())
        self._loop.run_until_complete(warmed_up(self._engine, self._running))
        self._serial = 0
        self._new = 0
        self._open = 0
        self._answers: list[tuple[_Session, torch.Tensor]] = []
        self._done = self._loop.create_future()

    def run(self, prompts: list[list[int]], new: int) -> Run:
        """All prompts at once. Raises RuntimeError where the engine ends, SessionFailed where it ends a session."""
        return self._complete(self._generate(prompts, new))

    def lags(self, prompts: list[list[int]], new: int) -> list[float]:
        """Seconds by which the event loop was late during a run, asked every millisecond."""
        return self._complete(self._measure_lags(prompts, new))

    def close(self) -> None:
        """End the engine and its thread."""
        self._running.cancel()
        self._loop.run_until_complete(asyncio.gather(self._running, return_exceptions=True))
        self._compute.shutdown()
        self._loop.close()

    def _complete(self, work: Coroutine[Any, Any, Result]) -> Result:
        async def unless_the_engine_ends() -> Result:
            task = asyncio.ensure_future(work)
            await asyncio.wait((task, self._running), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                raise RuntimeError("the engine has ended") from self._running.exception()
            return task.result()

        return self._loop.run_until_complete(unless_the_engine_ends())

    async def _generate(self, prompts: list[list[int]], new: int) -> Run:
        self._new, self._open, self._done = new, len(prompts), self._loop.create_future()
        sessions = []
        began = time.perf_counter()
        embedded = await self._loop.run_in_executor(self._compute, self._embed, prompts)
        for prompt, hidden in zip(prompts, embedded, strict=True):
            self._serial += 1
            session = _Session((1, self._serial), len(prompt))
            sessions.append(session)
            self._engine.sessions.open(
                session.key, "bench", len(prompt) + new, self._deliver_to(session), prompt=len(prompt)
            )
            self._engine.sessions.forward(session.key, 0, 0, hidden, 1)
        await self._done
        return Run(began, [session.times for session in sessions], [session.tokens for session in sessions])

    async def _measure_lags(self, prompts: list[list[int]], new: int) -> list[float]:
        lags: list[float] = []

        async def ask() -> None:
            while True:
                asked = time.perf_counter()
                await asyncio.sleep(LAG_EVERY_S)
                lags.append(time.perf_counter() - asked - LAG_EVERY_S)

        asking = asyncio.create_task(ask())
        await self._generate(prompts, new)
        asking.cancel()
        return lags

    def _deliver_to(self, session: _Session) -> Any:
        def deliver(outcome: Answered | SessionFailed) -> None:
            if isinstance(outcome, SessionFailed):
                if not self._done.done():
                    self._done.set_exception(outcome)
                return
            assert outcome.rows is not None
            if not self._answers:
                self._loop.call_soon(self._choose)
            self._answers.append((session, outcome.rows))

        return deliver

    def _choose(self) -> None:
        """Everything that was answered in this turn of the loop goes through the head together."""
        answers, self._answers = self._answers, []
        sessions = [session for session, _ in answers]
        choosing = self._loop.run_in_executor(self._compute, self._ends, [rows for _, rows in answers])
        choosing.add_done_callback(lambda chosen: self._go_on(sessions, chosen))

    def _embed(self, prompts: list[list[int]]) -> list[torch.Tensor]:
        return [self._embedding.forward(prompt) for prompt in prompts]

    def _ends(self, rows: list[torch.Tensor]) -> tuple[list[int], torch.Tensor, float]:
        """Last layer's rows -> the chosen tokens, their embeddings ``[rows, hidden]``, and when."""
        tokens = self._head.forward(torch.cat(rows)).argmax(-1)
        return tokens.tolist(), self._embedding.forward(tokens), time.perf_counter()

    def _go_on(self, sessions: list[_Session], chosen: asyncio.Future[tuple[list[int], torch.Tensor, float]]) -> None:
        if self._done.done():
            return
        error = chosen.exception()
        if error is not None:
            self._done.set_exception(error)
            return
        tokens, hidden, now = chosen.result()
        for index, session in enumerate(sessions):
            session.tokens.append(tokens[index])
            session.times.append(now)
            if len(session.tokens) == self._new:
                self._engine.sessions.close(session.key)
                self._open -= 1
                continue
            session.sequence += 1
            position = session.positions
            session.positions += 1
            self._engine.sessions.forward(session.key, session.sequence, position, hidden[index : index + 1], 1)
        if not self._open:
            self._done.set_result(None)
