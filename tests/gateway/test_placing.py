"""An agent that does not accept: another is tried, and only so many."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gateway import placing
from gateway.config import GatewayConfig
from wire.message import Failed


async def test_a_slow_agent_is_left_for_one_that_is_free(
    gateway: Any, connected: Any, scripts: Any, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before it is given up; it is told to stop, and what it says later counts for nothing."""
    monkeypatch.setattr(placing, "HEDGE_S", 0.05)

    async def late(agent: Any, asked: Any) -> None:
        await gateway.until(lambda: agent.cancelled)
        await scripts.answer(agent, asked)

    async with connected(gateway, late) as slow:
        task = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: slow.asked)
        async with connected(gateway) as free:
            assert (await task).json()["usage"]["prompt_tokens"] == 5
            assert (len(slow.asked), len(free.asked)) == (1, 1)
            await gateway.until(lambda: slow.cancelled == [slow.asked[0].request])
            assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200


async def test_an_agent_is_not_left_for_one_that_is_full(
    gateway: Any, connected: Any, scripts: Any, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the time it was given."""
    monkeypatch.setattr(placing, "HEDGE_S", 0.02)
    accept = asyncio.Event()

    async def late(agent: Any, asked: Any) -> None:
        await accept.wait()
        await scripts.answer(agent, asked)

    async with connected(gateway, scripts.hang, capacity=1) as full:
        hanging = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: full.asked)
        async with connected(gateway, late) as slow:
            task = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
            await gateway.until(lambda: slow.asked)
            await asyncio.sleep(0.1)  # Several looks for another.
            accept.set()
            assert (await task).status_code == 200
            assert len(full.asked) == 1 and not slow.cancelled
        hanging.cancel()


async def test_who_does_not_accept_in_time_is_not_the_last(
    serving: Any, connected: Any, scripts: Any, chat: Any
) -> None:
    """Another agent is tried, in whose time it is not too late."""
    async with serving(GatewayConfig(accept_within_s=1.0)) as gateway, connected(gateway, scripts.silent) as silent:
        task = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: silent.asked)
        async with connected(gateway) as other:
            assert (await task).status_code == 200
            assert len(other.asked) == 1


async def test_an_agent_that_says_itself_that_it_takes_too_long_is_not_the_last(
    gateway: Any, connected: Any, chat: Any
) -> None:
    """As where its cloud does not answer."""

    async def tells(agent: Any, asked: Any) -> None:
        agent.post(Failed("timeout", "my cloud does not answer", asked.request))

    async with connected(gateway, tells) as one:
        response = await gateway.http.post("/v1/chat/completions", json=chat)
        assert (response.status_code, response.json()["error"]["message"]) == (504, "my cloud does not answer")
        async with connected(gateway) as two:
            for _ in range(3):
                assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200
            assert len(two.asked) == 3 and len(one.asked) > 1


@pytest.mark.parametrize("hedge_s", [0.05, 5.0])
async def test_a_request_that_silences_agents_is_not_taken_to_all(
    serving: Any, connected: Any, scripts: Any, chat: Any, monkeypatch: pytest.MonkeyPatch, hedge_s: Any
) -> None:
    """Two of them, then the client hears of it."""
    monkeypatch.setattr(placing, "HEDGE_S", hedge_s)
    async with serving(GatewayConfig(accept_within_s=0.3)) as gateway, AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(connected(gateway, scripts.silent)) for _ in range(4)]
        response = await gateway.http.post("/v1/chat/completions", json=chat)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
        assert sorted(len(agent.asked) for agent in agents) == [0, 0, 1, 1]
        await gateway.until(lambda: sum(len(agent.cancelled) for agent in agents) == 2)


async def test_a_client_that_leaves_while_another_is_tried_leaves_nothing(
    gateway: Any, connected: Any, scripts: Any, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at the first agent nor at the second."""
    monkeypatch.setattr(placing, "HEDGE_S", 0.05)
    async with connected(gateway, scripts.silent) as one, connected(gateway, scripts.silent) as two:
        task = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: one.asked and two.asked)
        task.cancel()
        await gateway.until(lambda: len(one.cancelled) == len(two.cancelled) == 1)
        await gateway.until(lambda: gateway.roster.links[0].record.running == 0 == gateway.roster.running)
