"""What waits for a client, and its bounds."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway import answer as module
from gateway.answer import Answer, Complete
from gateway.errors import RequestError, internal
from gateway.meter import RequestMeter
from gateway.metrics import GatewayMetrics
from wire.request_messages import Alternative, Delta, Done, Finished, Scored, TokenLogprob


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
    answer.part_done(Done(1, 0, 4, 2, 8, 3))
    answer.accepted(3)
    assert not answer.over
    answer.part_done(Done(1, 0, 5, 0, 1, 1))
    assert await answer.take() == [Complete(6, 9, 2, 9, 4)]
    answer.fail(internal())  # Too late to count.
    answer.delta(Delta(1, 0, "late", 1))
    answer.nudge()
    assert await answer.take() == []


async def test_what_is_said_again_at_the_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of unsaid length ends where its log-probabilities are too many; another goes on."""
    monkeypatch.setattr(module, "MAX_WHOLE_LOGPROBS", 30)
    one = Alternative("x", -0.5, b"x")
    for repeated in (True, False):
        answer = Answer("m", 1, RequestMeter(GatewayMetrics(), time.perf_counter()), repeated=repeated)
        answer.accepted(3)
        for _ in range(10):
            answer.delta(Delta(1, 0, "x", 1, [TokenLogprob(one, [one] * 4)]))
        events = await answer.take()
        if repeated:
            assert answer.over and events[-2:] == [Finished(0, 0, "length"), Complete(3, 7)] and len(events) == 9
        else:
            assert not answer.over and len(events) == 10


async def test_an_error_comes_after_what_came_before(answer: Any) -> None:
    """And comes again."""
    answer.delta(Delta(1, 0, "a", 1))
    answer.fail(internal())
    answer.delta(Delta(1, 0, "late", 1))
    assert len(await answer.take()) == 1
    for _ in range(2):
        with pytest.raises(RequestError):
            await answer.take()


async def test_what_waits_is_bounded(answer: Any, monkeypatch: Any) -> None:
    """Not what was taken: a stream may be of any length."""
    monkeypatch.setattr(module, "MAX_UNREAD", 1000)
    monkeypatch.setattr(module, "MAX_ANSWER", 1000)
    for _ in range(10):
        for _ in range(4):
            answer.delta(Delta(1, 0, "x" * 100, 1))
        assert len(await answer.take()) == 4
    for _ in range(10):
        answer.delta(Delta(1, 0, "x" * 100, 1))
    assert len(await answer.take()) < 10
    with pytest.raises(RequestError) as caught:
        await answer.take()
    assert caught.value.code == "slow_client"


async def test_an_answer_in_one_piece_is_bounded_as_a_whole(monkeypatch: Any) -> None:
    """However quickly it is taken, since whoever takes it keeps it; the log says so."""
    answer = Answer("m", 1, RequestMeter(GatewayMetrics(), time.perf_counter()), whole=True)
    answer.accepted(3)
    monkeypatch.setattr(module, "MAX_UNREAD", 300)
    monkeypatch.setattr(module, "MAX_ANSWER", 1000)
    with capture_logs() as logs:
        for _ in range(6):
            answer.delta(Delta(1, 0, "x" * 100, 1))
            await answer.take()
        answer.delta(Delta(1, 0, "x" * 100, 1))
    assert [each["event"] for each in logs] == ["answer too large"]
    with pytest.raises(RequestError) as caught:
        await answer.take()
    assert caught.value.code == "answer_too_large"


@pytest.mark.parametrize("whole", [True, False])
async def test_scores_are_bounded_by_their_text_too(whole: bool, monkeypatch: Any) -> None:
    """Taken or not: no prompt has as much as an agent that says this."""
    answer = Answer("m", 1, RequestMeter(GatewayMetrics(), time.perf_counter()), whole=whole)
    answer.accepted(3)
    monkeypatch.setattr(module, "MAX_ANSWER", 1000)
    for _ in range(6):
        answer.scored(Scored(1, 0, "x" * 100, []))
        assert len(await answer.take()) == 1
    answer.scored(Scored(1, 0, "x" * 100, []))
    with pytest.raises(RequestError) as caught:
        await answer.take()
    assert caught.value.status == 502


def test_texts_and_bytes_of_log_probabilities_count() -> None:
    """Those of the alternatives too."""

    def delta(text: str, raw: bytes) -> Delta:
        other = Alternative(text, -1.0, raw)
        return Delta(1, 0, "", 1, [TokenLogprob(other, [other, other])])

    assert module.size_of(delta("x" * 1000, b"y" * 500)) - module.size_of(delta("", b"")) == 3 * 1500
