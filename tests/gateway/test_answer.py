"""What waits for a client, and its bounds."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from gateway import answer as module
from gateway.answer import Answer, Complete
from gateway.errors import RequestError, internal
from gateway.metrics import GatewayMetrics, RequestMeter
from wire.messages import Delta, Finished


@pytest.fixture
def answer() -> Any:
    new = Answer("m", 2, RequestMeter(GatewayMetrics(), time.perf_counter()))
    new.accepted(3)
    return new


async def test_all_that_has_gathered_is_taken_at_once(answer: Any) -> None:
    """In order, and then nothing until more comes."""
    answer.delta(Delta(1, 0, "a", 1))
    answer.finished(Finished(1, 0, "stop"))
    assert [type(event) for event in await answer.take()] == [Delta, Finished]
    waiting = asyncio.create_task(answer.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    answer.nudge()
    assert await waiting == []


async def test_complete_when_every_part_is(answer: Any) -> None:
    """With the sums."""
    answer.part_done(4)
    answer.accepted(3)
    assert not answer.over
    answer.part_done(5)
    assert await answer.take() == [Complete(6, 9)]
    answer.fail(internal())  # Too late to count.
    answer.delta(Delta(1, 0, "late", 1))
    answer.nudge()
    assert await answer.take() == []


async def test_an_error_comes_after_what_came_before(answer: Any) -> None:
    """And comes again."""
    answer.delta(Delta(1, 0, "a", 1))
    answer.fail(internal())
    answer.delta(Delta(1, 0, "late", 1))
    assert len(await answer.take()) == 1
    for _ in range(2):
        with pytest.raises(RequestError):
            await answer.take()


@pytest.mark.parametrize(("bound", "code"), [("MAX_UNREAD", "slow_client"), ("MAX_ANSWER", "internal_error")])
async def test_what_waits_is_bounded(answer: Any, monkeypatch: Any, bound: Any, code: Any) -> None:
    """The unread part, and the whole."""
    monkeypatch.setattr(module, bound, 1000)
    for _ in range(10):
        answer.delta(Delta(1, 0, "x" * 100, 1))
    assert len(await answer.take()) < 10
    with pytest.raises(RequestError) as caught:
        await answer.take()
    assert caught.value.code == code
