"""Questions about one conversation are answered as transformers would, its rows computed once, and nothing is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from checkpoints import DEMO
from clouds import cloud_here, device_hello, remote_middle, rows_in, until
from decisions import QUESTIONS, TURNS, check_chances, told
from groups import PORTAL, group_here, plan_of
from served_chains import served

from device_agent.answering import deciding
from device_agent.answering.deciding import read_questions
from device_agent.answering.tokenizer import Tokenizer
from device_agent.speculative.drafters import Drafters
from split_model.checkpoint import Checkpoint
from wire.decision_messages import Decide, Decided, Question
from wire.errors import Code, SessionFailed
from wire.messages import AnyMessage
from wire.text_messages import ChatTurn


@pytest.mark.parametrize(("tail", "at_once"), [(0, 0), (2, 2)])
async def test_the_conversation_is_read_once(tail: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row comes to the cloud once: the conversation's, each question's, and those of options of several tokens;
    also where layers are behind the cloud."""
    async with (
        cloud_here(DEMO, 2, tail) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, tail)) as remote,
        served(remote, tail=tail) as model,
    ):
        rows, forks = rows_in(cloud, monkeypatch), cloud.server.engine.metrics.forks._value
        found, done = await told(model, at_once=at_once)
        check_chances(found, DEMO)
        shared, questions = read_questions(Decide(1, "id", "m", TURNS, QUESTIONS), model.tokenizer, 1024, 1 << 20)
        assert sum(rows) == len(shared) + sum(each.rows for each in questions)
        assert done.prompt_tokens == len(shared) + sum(len(each.ids) for each in questions)
        assert forks.get() == (at_once or len(QUESTIONS)) - 1
        await until(lambda: not cloud.server.engine.ledger.entries)


@pytest.mark.parametrize("where", ["input", "questions[0]"])
@pytest.mark.parametrize("option", [False, True])
def test_tokens_that_only_the_tokenizer_knows_are_refused(where: str, option: bool) -> None:
    """In the conversation, in a question, or in one of its options; what has them is named."""
    tokenizer, vocabulary = Tokenizer.load(DEMO, ()), Checkpoint.open(DEMO).spec.vocab_size
    texts = ((tokenizer.decode([each]), each) for each in reversed(range(vocabulary)))
    last, number = next((text, each) for text, each in texts if text and tokenizer.rendered(text) == [each])
    turns = [ChatTurn("user", last if where == "input" else "a")]
    question = Question("b", ["yes", last] if option else ["yes", "no"])
    if where != "input" and not option:
        question = Question(last, ["yes", "no"])
    with pytest.raises(SessionFailed, match=f"number {number}") as refused:
        read_questions(Decide(1, "id", "m", turns, [question]), tokenizer, 1024, number)
    assert refused.value.param == where


async def test_all_layers_here() -> None:
    """On this device alone, where one may run at a time."""
    async with served(None, permits=1) as model:
        found, _ = await told(model)
        check_chances(found, DEMO)


async def test_in_a_group() -> None:
    """Two devices share the layers."""
    plan = plan_of(Checkpoint.open(DEMO).spec, "pipeline", (PORTAL, "other"))
    with group_here(DEMO, plan) as group:
        async with served(group, split=0) as model:
            found, _ = await told(model)
            check_chances(found, DEMO)


async def test_forks_that_are_refused_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From what the device has; nothing is less likely by it."""
    async with (
        cloud_here(DEMO, 2, 0) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, 0)) as remote,
        served(remote) as model,
    ):

        def refusing(*_: Any) -> None:
            raise SessionFailed(Code.SESSION_LIMIT, "no", retry_after_s=0.01)

        monkeypatch.setattr(cloud.server.engine.sessions, "fork", refusing)
        found, _ = await told(model)
        check_chances(found, DEMO)


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_an_end_in_the_middle_ends_all(after: int, drafters: Drafters) -> None:
    """Cancelled while the conversation is read, or when some questions are answered: no session is left in the cloud,
    no permit is held, and the next request is served."""
    async with (
        cloud_here(DEMO, 2, 0) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, 0)) as remote,
        served(remote, drafters, permits=3) as model,
    ):
        entries, seen = cloud.server.engine.ledger.entries, 0

        def heard(message: AnyMessage) -> None:
            nonlocal seen
            seen += isinstance(message, Decided)
            if seen == after:
                running.cancel()

        running = asyncio.ensure_future(told(model, heard, questions=QUESTIONS * 6))
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()
        await until(lambda: not entries)
        found, _ = await told(model)
        check_chances(found, DEMO)


async def test_a_model_without_numbers_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that says so, and no session is left."""

    async def nothing(_: Any, deep: Any, wanted: list[Any]) -> list[float]:
        return [float("nan")] * len(wanted)

    async with (
        cloud_here(DEMO, 2, 0) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, 0)) as remote,
        served(remote) as model,
    ):
        monkeypatch.setattr(deciding, "likelihoods", nothing)
        with pytest.raises(SessionFailed) as failed:
            await told(model)
        assert failed.value.code is Code.NOT_FINITE
        await until(lambda: not cloud.server.engine.ledger.entries)


@pytest.mark.parametrize(
    ("changed", "code", "param"),
    [
        ({"turns": [ChatTurn("user", "word " * 2000)]}, Code.CONTEXT_LENGTH_EXCEEDED, "input"),
        ({"turns": [ChatTurn("user", "word " * 1010)]}, Code.CONTEXT_LENGTH_EXCEEDED, "questions[0]"),
        ({"questions": [*QUESTIONS, Question("long " * 3000, ["a", "b"])]}, Code.INVALID_REQUEST, "questions[5]"),
        ({"questions": [Question("q", ["a", "b" * 200])]}, Code.INVALID_REQUEST, "questions[0]"),
        ({"questions": [Question("q", ["a", ""])]}, Code.INVALID_REQUEST, "questions[0]"),
        ({"questions": [Question("q", ["a", "a"])]}, Code.INVALID_REQUEST, "questions[0]"),
    ],
)
async def test_what_is_too_much_is_refused(changed: dict[str, Any], code: Code, param: str) -> None:
    """Before anything is computed, and named."""
    async with served(None) as model:
        with pytest.raises(SessionFailed) as failed:
            await told(model, **changed)
        assert (failed.value.code, failed.value.param) == (code, param)


async def test_all_questions_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short each of them is."""
    async with served(None) as model:
        monkeypatch.setattr(deciding, "MAX_ROWS", 60)
        with pytest.raises(SessionFailed, match="fewer at once"):
            await told(model)
        monkeypatch.setattr(deciding, "MAX_NODES", 1)
        with pytest.raises(SessionFailed, match="options have over 1 tokens"):
            await told(model)
