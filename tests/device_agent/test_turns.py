"""Turns of a conversation: what the last one left is used, by nobody else, and the answers are as without it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from checkpoints import DEMO
from clouds import cloud_here, device_hello, remote_middle, rows_in, until
from oracle import oracle_tokens, prompt_for
from served_chains import expected, served

from device_agent.answering.answer import ServedChain, answer
from wire.errors import Code, SessionFailed
from wire.messages import AnyMessage
from wire.request_messages import Accepted, Delta, Done, Finished, Generate, Sampling

TOKENS = 8
GREEDY = Sampling(temperature=0.0)
FIRST = prompt_for(DEMO, 60)


def request(ids: tuple[int, ...], tenant: str = "a", n: int = 1, max_tokens: int = TOKENS) -> Generate:
    """A greedy answer to these."""
    return Generate(
        1, "id", "demo", "", list(ids), n, max_tokens, ignore_eos=True, logprobs=0, sampling=GREEDY, tenant=tenant
    )


async def ask(model: ServedChain, asked: Generate) -> tuple[bytes, Done]:
    """The bytes of the first choice's tokens, and the last message."""
    said: list[AnyMessage] = []
    await answer(model, asked, said.append)
    assert isinstance(said[0], Accepted) and isinstance(said[-1], Done)
    assert sum(isinstance(message, Finished) for message in said) == asked.n
    tokens = [
        token.chosen.raw
        for message in said
        if isinstance(message, Delta) and not message.index
        for token in message.logprobs or []
    ]
    return b"".join(tokens), said[-1]


def second_prompt() -> tuple[int, ...]:
    """The first turn, its answer, and more."""
    return (*FIRST, *oracle_tokens(DEMO, FIRST, TOKENS), *prompt_for(DEMO, 10, seed=9))


async def test_long_prompts_of_one_do_not_all_go_before_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cloud runs a device's prompts one after the other: of those that another tenant has queued, few are ahead."""
    async with (
        cloud_here(DEMO, 2, 0, step_rows=16) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, 0)) as remote,
        served(remote) as model,
    ):
        first: list[str] = []

        async def first_token(tenant: str, number: int) -> None:
            def post(message: AnyMessage) -> None:
                if isinstance(message, Delta):
                    first.append(tenant)

            asked = request(prompt_for(DEMO, 480, seed=number), tenant=tenant, max_tokens=1)
            await answer(model, asked, post)

        seen = rows_in(cloud, monkeypatch)
        greedy = [asyncio.create_task(first_token("a", number)) for number in range(6)]
        await until(lambda: sum(seen) >= 300)
        await asyncio.create_task(first_token("b", 6))
        await asyncio.gather(*greedy)
        assert sum(seen) == 7 * 480 and first.index("b") <= 3, first


async def test_a_next_turn_sends_only_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is still in the cloud; one evicted there meanwhile is replayed; each time the tokens are the same."""
    second = second_prompt()
    third = (*second, *oracle_tokens(DEMO, second, TOKENS), *prompt_for(DEMO, 7, seed=10))
    async with (
        cloud_here(DEMO, 2, 0) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, 0)) as remote,
        served(remote) as model,
    ):
        rows, engine = rows_in(cloud, monkeypatch), cloud.server.engine
        text, done = await ask(model, request(FIRST))
        assert text == expected(model, FIRST, TOKENS) and done.cached_tokens == 0
        assert sum(rows) == len(FIRST) + TOKENS - 1
        assert len(engine.ledger.entries) == 1, "the session is kept"

        rows.clear()
        text, done = await ask(model, request(second))
        held = len(FIRST) + TOKENS - 1
        assert text == expected(model, second, TOKENS)
        assert (done.cached_tokens, done.prompt_tokens) == (held, len(second))
        assert sum(rows) == len(second) - held + TOKENS - 1

        rows.clear()
        await until(lambda: any(entry.state.value == "parked" for entry in engine.ledger.entries.values()))
        engine.sessions.end(next(iter(engine.ledger.entries)), SessionFailed(Code.EVICTED, "why"))
        await until(lambda: not remote.clouds.links[0].sessions)
        text, done = await ask(model, request(third))
        assert text == expected(model, third, TOKENS)
        assert sum(rows) == len(third) + TOKENS - 1
        assert len(engine.ledger.entries) == len(model.conversations) == 1


async def test_it_works_the_same_with_all_layers_here() -> None:
    """Without a cloud, the turn before is in this device's memory."""
    async with served(None) as model:
        await ask(model, request(FIRST))
        text, done = await ask(model, request(second_prompt()))
        assert text == expected(model, second_prompt(), TOKENS)
        assert done.cached_tokens == len(FIRST) + TOKENS - 1


async def test_another_tenant_shares_nothing() -> None:
    """Neither its tokens nor its time: the same prompt is prefilled in full."""
    async with served(None) as model:
        await ask(model, request(FIRST, "a"))
        for tenant in ("b", ""):
            text, done = await ask(model, request(FIRST, tenant))
            assert text == expected(model, FIRST, TOKENS) and done.cached_tokens == 0
        assert len(model.conversations) == 3


async def test_one_request_at_a_time_has_a_conversation() -> None:
    """Two that go on with the same: one gets it, the other does without; of several choices the first is kept."""
    async with served(None) as model:
        await ask(model, request(FIRST, n=3))
        assert len(model.conversations) == 1
        both = await asyncio.gather(*(ask(model, request(second_prompt())) for _ in range(2)))
        assert sorted(done.cached_tokens > 0 for _, done in both) == [False, True]
        assert {text for text, _ in both} == {expected(model, second_prompt(), TOKENS)}


async def test_further_choices_take_nobodys_conversation() -> None:
    """They are not kept, so that what they took would be gone."""
    async with served(None) as model:
        await asyncio.gather(*(ask(model, request(FIRST)) for _ in range(2)))
        assert len(model.conversations) == 2
        await ask(model, request(second_prompt(), n=3))
        assert len(model.conversations) == 2
        _, done = await ask(model, request(second_prompt()[:-1]))
        assert done.cached_tokens > 0


async def test_no_more_choices_at_once_than_asked_for() -> None:
    """One after another where one at a time is asked for: none begins before another ends. The tokens are the same."""
    async with served(None) as model:
        said: list[AnyMessage] = []
        await answer(model, msgspec.structs.replace(request(FIRST, n=3), at_once=1), said.append)
        order = [message.index for message in said if isinstance(message, (Delta, Finished))]
        assert order == sorted(order) and set(order) == {0, 1, 2}
        text, done = await ask(model, msgspec.structs.replace(request(FIRST, n=5), at_once=2))
        assert text == expected(model, FIRST, TOKENS) and done.completion_tokens == 5 * TOKENS


async def test_without_a_cloud_nothing_is_accepted() -> None:
    """Neither for a new conversation nor for one that goes on, which stays for when a cloud is back."""
    async with (
        cloud_here(DEMO, 2, 0) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, 0), recover_within_s=0.2) as remote,
        served(remote) as model,
    ):
        await ask(model, request(FIRST))
        link = remote.clouds.links[0]
        assert link.stream is not None
        url, link.url = link.url, "ws://127.0.0.1:9/device"
        link.stream._transport._websocket.transport.abort()  # type: ignore[attr-defined]
        await until(lambda: not remote.connected)
        for ids in (second_prompt(), prompt_for(DEMO, 30, seed=12)):
            said: list[AnyMessage] = []
            with pytest.raises(SessionFailed) as failed:
                await answer(model, request(ids), said.append)
            assert failed.value.code is Code.UPSTREAM_LOST and said == []
        assert len(model.conversations) == 1
        link.url = url
        await until(lambda: remote.connected)
        text, done = await ask(model, request(second_prompt()))
        assert text == expected(model, second_prompt(), TOKENS) and done.cached_tokens == len(FIRST) + TOKENS - 1


async def test_a_request_that_waited_fits_the_cloud_that_is_there_then() -> None:
    """It asks for as much as that allows, not for what another allowed when it came."""
    async with (
        cloud_here(DEMO, 2, 0) as first,
        cloud_here(DEMO, 2, 0, max_model_len=200) as second,
        remote_middle([first.url, second.url], device_hello(DEMO, 2, 0)) as remote,
        served(remote) as model,
    ):
        async with AsyncExitStack() as all_permits:
            for _ in range(8):
                await all_permits.enter_async_context(model.permits.one(""))
            waits = asyncio.create_task(ask(model, request(FIRST)))
            await until(lambda: model.permits.waiting == 1)
            link = remote.clouds.links[0]
            assert link.stream is not None
            link.url = "ws://127.0.0.1:9/device"
            link.stream._transport._websocket.transport.abort()  # type: ignore[attr-defined]
            await until(lambda: remote.max_positions == 200)
        text, _ = await waits
        assert text == expected(model, FIRST, TOKENS)


async def test_cancelled_and_failed_answers_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are closed, here and in the cloud, a conversation taken up for them included."""
    async with (
        cloud_here(DEMO, 2, 0) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, 0)) as remote,
        served(remote) as model,
    ):
        await ask(model, request(FIRST))
        said: list[AnyMessage] = []
        task = asyncio.create_task(answer(model, request(second_prompt(), max_tokens=400), said.append))
        await until(lambda: any(isinstance(message, Delta) for message in said))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not len(model.conversations)
        engine = cloud.server.engine
        await until(lambda: not engine.ledger.entries)
        await ask(model, request(FIRST))

        async def broken(*_: Any) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr(engine._runner, "run", broken)
        with pytest.raises(SessionFailed):
            await ask(model, request(second_prompt()))
        assert not len(model.conversations)
        await until(lambda: not engine.ledger.entries)
