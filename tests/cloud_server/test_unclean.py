"""NaN that a session leaves behind is gone before its pages are anybody else's."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from clouds import until

from cloud_server.build import build
from cloud_server.cache.moving import NOWHERE, Unclean
from cloud_server.cache.pool import KVPool
from cloud_server.config import CloudConfig
from cloud_server.engine.engine import Engine
from cloud_server.engine.session import Answered
from cloud_server.engine.steps import Step
from cloud_server.stages.layer_step import Ran, StepFailed
from cloud_server.stages.runner import LocalRunner
from wire.errors import Code, SessionFailed

HIDDEN = 32


@asynccontextmanager
async def engine_here(tiny: Path) -> AsyncIterator[Engine]:
    """A running engine."""
    engine = build(CloudConfig(model=str(tiny), split=1, kv_mb=1)).engine
    task = asyncio.create_task(engine.run())
    await until(lambda: engine.alive)
    try:
        yield engine
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def pool_of(engine: Engine) -> KVPool:
    """Its keys and values."""
    pool = engine._runner._step.pool  # type: ignore[attr-defined]
    assert isinstance(pool, KVPool)
    return pool


def holds_nan(engine: Engine) -> bool:
    """Whether any slot, held or free, has something that is no number."""
    pool = pool_of(engine)
    return not bool(torch.isfinite(pool.keys).all() and torch.isfinite(pool.values).all())


class Outcomes:
    """What becomes of a session."""

    def __init__(self) -> None:
        self.rows: list[torch.Tensor] = []
        self.code: Code | None = None

    def __call__(self, outcome: Answered | SessionFailed) -> None:
        if isinstance(outcome, SessionFailed):
            self.code = outcome.code
        elif outcome.rows is not None:
            self.rows.append(outcome.rows)


async def answered(engine: Engine, key: tuple[int, int]) -> torch.Tensor:
    """What an honest session of a prompt and a token gets back."""
    outcomes = Outcomes()
    engine.sessions.open(key, "honest", 64, outcomes)
    for sequence, (begin, count) in enumerate(((0, 40), (40, 1))):
        hidden = torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(sequence))
        engine.sessions.forward(key, sequence, begin, hidden, count)
        await until(lambda so_far=sequence: len(outcomes.rows) == so_far + 1)
    return torch.cat(outcomes.rows)


def poisoned(engine: Engine, key: tuple[int, int]) -> Outcomes:
    """A session whose rows are asked for, and become no numbers in every layer."""
    outcomes = Outcomes()
    engine.sessions.open(key, "poisoner", 64, outcomes)
    engine.sessions.forward(key, 0, 0, torch.full((45, HIDDEN), math.nan), 1)
    return outcomes


@pytest.mark.parametrize("ending", ["found out", "closed meanwhile", "truncated meanwhile", "gone meanwhile"])
async def test_nothing_is_left_for_the_next(ending: str, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is found out, or its device closes it, goes back or goes away while the step runs: once another
    session's step has run there is no NaN in any page, and that session's rows are what they always are."""
    gate, run = asyncio.Event(), LocalRunner.run

    async def gated(self: LocalRunner, *given: Any) -> Ran:
        await gate.wait()
        return await run(self, *given)

    gate.set()
    monkeypatch.setattr(LocalRunner, "run", gated)
    async with engine_here(tiny) as engine:
        wanted = await answered(engine, (1, 1))
        engine.sessions.close((1, 1))
        gate.clear()
        outcomes = poisoned(engine, (2, 1))
        await until(lambda: engine.sessions[2, 1].under_way)
        if ending == "closed meanwhile":
            engine.sessions.close((2, 1))
        elif ending == "truncated meanwhile":
            engine.sessions.truncate((2, 1), 3)
        elif ending == "gone meanwhile":
            engine.sessions.leave(2)
            engine.sessions.resume((2, 1), (3, 1), 0, outcomes)
            engine.sessions.close((3, 1))
        gate.set()
        await until(lambda: not engine._under_way)
        if ending in ("found out", "truncated meanwhile"):
            await until(lambda: outcomes.code is not None)
            assert outcomes.code is Code.NOT_FINITE
        assert holds_nan(engine) and not engine.ledger.pages.used
        assert torch.equal(await answered(engine, (4, 1)), wanted)
        assert not holds_nan(engine)


async def test_a_step_that_fails_is_followed_by_one_that_clears(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the failed step had to clear is not forgotten."""
    async with engine_here(tiny) as engine:
        outcomes = poisoned(engine, (1, 1))
        await until(lambda: outcomes.code is Code.NOT_FINITE)
        run = LocalRunner.run

        async def failing(*given: Any) -> Ran:
            monkeypatch.setattr(LocalRunner, "run", run)
            raise StepFailed("this once")

        monkeypatch.setattr(LocalRunner, "run", failing)
        lost = Outcomes()
        engine.sessions.open((2, 1), "honest", 64, lost)
        engine.sessions.forward((2, 1), 0, 0, torch.ones(2, HIDDEN), 1)
        await until(lambda: lost.code is Code.INTERNAL)
        assert holds_nan(engine)
        await answered(engine, (3, 1))
        assert not holds_nan(engine)


async def test_a_failed_step_clears_nothing_under_a_living_session(tiny: Path) -> None:
    """Who has got a page by now that it was to clear is ended, to be begun again: nobody knows whether it is clear, and
    a later step that clears it would take what was written there since. All others go on."""
    async with engine_here(tiny) as engine:
        sessions, pages, upkeep = engine.sessions, engine.ledger.pages, engine.sessions.upkeep
        outcomes = {number: Outcomes() for number in (1, 2)}
        for number, outcome in outcomes.items():
            sessions.open((number, 1), "honest", 64, outcome)
            assert pages.extend((number, 1), 20)
        page, size = pages.table((1, 1))[0], pages.page_positions
        engine.steps.fail(Step((), (), (), [(NOWHERE, page * size, size)]))
        assert outcomes[1].code is Code.INTERNAL and (1, 1) not in sessions
        assert outcomes[2].code is None and (2, 1) in sessions
        assert (NOWHERE, page * size, size) in upkeep.unclean.take()


def test_which_pages_are_marked() -> None:
    """Those with positions that were written, but for those that their session keeps; each once."""
    unclean = Unclean(4)
    unclean.mark((7, 2, 9, 5), 5, 9)
    unclean.mark((7, 2, 9, 5), 0, 16, kept=9)
    unclean.mark((8, 1), 6)
    moves = unclean.take()
    assert moves == [(NOWHERE, page * 4, 4) for page in (1, 2, 5, 9)]
    assert unclean.take() == []
    unclean.failed([(3, 4, 1), *moves])
    assert unclean.take((5, 1, 3)) == [moves[0], moves[2]]
    assert unclean.take() == [moves[1], moves[3]]
