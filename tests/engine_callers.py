"""An engine in the test's own event loop, and sessions of it as their devices see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from clouds import START_WITHIN_S, until

from cloud_server.build import build
from cloud_server.config import CloudConfig
from cloud_server.engine.engine import Engine
from cloud_server.engine.session import Answered
from split_model.checkpoint import Checkpoint
from split_model.slices import middle_slice
from split_model.stack import Span, Stack
from wire.errors import SessionFailed

HIDDEN = 32


@asynccontextmanager
async def engine_here(tiny: Path, **settings: Any) -> AsyncIterator[Engine]:
    """The engine of a cloud server for a model, running."""
    engine = build(CloudConfig(model=str(tiny), split=1, **{"kv_mb": 16, **settings})).engine
    task = asyncio.create_task(engine.run())
    await warmed_up(engine, task)
    try:
        yield engine
        engine.ledger.pages.check()
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def warmed_up(engine: Engine, running: asyncio.Task[None]) -> None:
    """Wait until ``engine``, which runs as the task ``running``, admits sessions, or has ended."""
    await until(lambda: engine.alive or running.done(), START_WITHIN_S)


@dataclass(eq=False)
class Caller:
    """A session as its device sees it."""

    engine: Engine
    key: tuple[int, int]
    position: int = 0
    sequence: int = 0
    answers: dict[int, asyncio.Future[Answered]] = field(default_factory=dict)
    ended: SessionFailed | None = None

    def open(self, positions: int = 64, tenant: str = "one", **more: Any) -> Caller:
        self.engine.sessions.open(self.key, tenant, positions, self.deliver, **more)
        return self

    def send(
        self, hidden: torch.Tensor, want: int = 1, parents: Sequence[int] | None = None
    ) -> asyncio.Future[Answered]:
        """Hand over rows; the answer."""
        future = asyncio.get_running_loop().create_future()
        self.answers[self.sequence] = future
        self.engine.sessions.forward(self.key, self.sequence, self.position, hidden, want, parents)
        self.sequence += 1
        if parents is None:
            self.position += len(hidden)
        return future

    async def rows(self, hidden: torch.Tensor, want: int = 1, parents: Sequence[int] | None = None) -> torch.Tensor:
        """Hand over rows and wait for what they become."""
        outputs = (await self.send(hidden, want, parents)).rows
        assert outputs is not None
        return outputs

    def close(self) -> None:
        """End it."""
        self.engine.sessions.close(self.key)

    def fork(self, key: tuple[int, int], position: int) -> Caller:
        """Another session, which goes on where this one was at ``position``."""
        forked = Caller(self.engine, key, position)
        self.engine.sessions.fork(self.key, key, position, forked.deliver)
        return forked

    def keep(self, nodes: Sequence[int]) -> None:
        """Go on behind these nodes."""
        self.engine.sessions.keep(self.key, nodes)
        self.position += len(nodes)

    def deliver(self, outcome: Answered | SessionFailed) -> None:
        if isinstance(outcome, SessionFailed):
            self.ended = outcome
            for future in self.answers.values():
                if not future.done():
                    future.set_exception(outcome)
        elif not (answer := self.answers.pop(outcome.sequence)).done():  # Whoever gave up waiting has cancelled it.
            answer.set_result(outcome)


def hidden(rows: int, seed: int) -> torch.Tensor:
    """Some hidden states."""
    return torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(seed))


@cache
def layers_of(tiny: Path) -> Stack:
    """The layers that the engine has."""
    checkpoint = Checkpoint.open(tiny)
    return Stack.load(checkpoint, middle_slice(checkpoint.spec, 1, 0), torch.float32)


def expected(tiny: Path, rows: torch.Tensor) -> torch.Tensor:
    """What the layers make of a session's rows, alone and at once."""
    stack = layers_of(tiny)
    return stack.forward(rows, [Span(stack.new_cache(len(rows)), len(rows))])


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """The same up to rounding."""
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
