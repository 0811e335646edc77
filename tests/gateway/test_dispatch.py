"""Requests find agents: at once, after waiting, at another agent, or get told why not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.config import GatewayConfig
from wire.messages import Drain, Failed, ServedModel


async def test_work_spreads_over_agents(gateway: Any, connected: Any, chat: Any) -> None:
    """One request after another, each agent gets its share."""
    async with connected(gateway, name="one") as one, connected(gateway, name="two") as two:
        for _ in range(4):
            assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200
        assert (len(one.asked), len(two.asked)) == (2, 2)


async def test_the_model_decides(gateway: Any, connected: Any, chat: Any) -> None:
    """Among agents that serve it."""
    other = ServedModel("other", 100, 1)
    async with connected(gateway) as one, connected(gateway, models=(other,)) as two:
        for _ in range(3):
            await gateway.http.post("/v1/chat/completions", json=chat | {"model": "other"})
        assert (len(one.asked), len(two.asked)) == (0, 3)
        missing = await gateway.http.post("/v1/chat/completions", json=chat | {"model": "third"})
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_full_house_waits_in_order(gateway: Any, connected: Any, scripts: Any, chat: Any) -> None:
    """Never more at an agent than its capacity; everybody is answered."""
    most = 0

    async def slow(agent: Any, asked: Any) -> None:
        nonlocal most
        most = max(most, gateway.dispatcher.running)
        await asyncio.sleep(0.01)
        await scripts.answer(agent, asked)

    async with connected(gateway, slow, capacity=2):
        replies = await asyncio.gather(
            *(gateway.http.post("/v1/chat/completions", json=chat | {"seed": at}) for at in range(12))
        )
        assert {reply.status_code for reply in replies} == {200}
        assert most <= 2


async def test_the_waiting_room_is_bounded_in_places_and_time(
    serving: Any, connected: Any, scripts: Any, chat: Any
) -> None:
    """429 when it is full, 503 when the wait was too long; both say when to come back."""
    config = GatewayConfig(max_waiting=1, wait_within_s=0.3)
    async with serving(config) as gateway, connected(gateway, scripts.hang, capacity=1):
        first = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: gateway.dispatcher.running == 1)
        second = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: gateway.dispatcher.waiting == 1)
        third = await gateway.http.post("/v1/chat/completions", json=chat)
        assert (third.status_code, third.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(third.headers["retry-after"]) >= 1
        waited = await second
        assert (waited.status_code, waited.json()["error"]["code"]) == (503, "overloaded")
        assert int(waited.headers["retry-after"]) >= 1
        first.cancel()


async def test_who_waits_is_served_when_another_agent_comes(
    gateway: Any, connected: Any, scripts: Any, chat: Any
) -> None:
    """And refused when the last one goes."""
    async with connected(gateway, scripts.hang, capacity=1) as busy:
        first = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: busy.asked)
        second = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: gateway.dispatcher.waiting == 1)
        async with connected(gateway):
            assert (await second).status_code == 200
        third = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: gateway.dispatcher.waiting == 1)
        await busy.cut()
        assert (await third).json()["error"]["code"] == "no_agent"
        assert (await first).json()["error"]["code"] == "upstream_lost"


@pytest.mark.parametrize("code", ["overloaded", "draining", "upstream_lost"])
async def test_an_agents_refusal_is_tried_elsewhere(gateway: Any, connected: Any, chat: Any, code: Any) -> None:
    """When it is about the agent; each agent once."""

    async def refuse(agent: Any, asked: Any) -> None:
        agent.post(Failed(code, "not me", asked.request))

    async with connected(gateway, refuse) as one:
        async with connected(gateway) as two:
            for _ in range(2):
                assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200
            assert len(two.asked) == 2
        one.asked.clear()
        await gateway.until(lambda: len(gateway.dispatcher.links) == 1)
        assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 503
        assert len(one.asked) == 1


async def test_an_agent_lost_before_it_accepted_is_replaced(
    gateway: Any, connected: Any, scripts: Any, chat: Any
) -> None:
    """The client notices nothing."""
    async with connected(gateway, scripts.silent) as one:
        task = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: one.asked)
        async with connected(gateway) as two:
            await one.cut()
            assert (await task).status_code == 200
            assert len(two.asked) == 1


async def test_an_agent_that_never_accepts_is_given_up(serving: Any, connected: Any, scripts: Any, chat: Any) -> None:
    """504 within the time for it, and a Cancel."""
    async with serving(GatewayConfig(accept_within_s=0.2)) as gateway, connected(gateway, scripts.silent) as agent:
        response = await gateway.http.post("/v1/chat/completions", json=chat)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
        await gateway.until(lambda: len(agent.cancelled) == 1)


async def test_agents_that_stop_or_lost_their_cloud_get_nothing(gateway: Any, connected: Any, chat: Any) -> None:
    """503 while no other serves the model; 200 again once the cloud is back."""
    async with connected(gateway) as agent:
        agent.state(0, False)
        await gateway.until(lambda: gateway.dispatcher.links[0].record.cloud_connected is False)
        response = await gateway.http.post("/v1/chat/completions", json=chat)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "agents_unavailable")
        agent.state(0, True)
        await gateway.until(lambda: gateway.dispatcher.links[0].record.cloud_connected)
        assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200
        agent.post(Drain(5.0))
        await gateway.until(lambda: gateway.dispatcher.links[0].record.draining)
        assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 503


async def test_load_from_elsewhere_counts(gateway: Any, connected: Any, chat: Any) -> None:
    """An agent that several gateways use reports more than we gave it."""
    async with connected(gateway, capacity=2) as busy, connected(gateway, capacity=2) as free:
        busy.state(1)
        await gateway.until(lambda: gateway.dispatcher.links[0].record.running == 1)
        for _ in range(2):
            await gateway.http.post("/v1/chat/completions", json=chat)
        assert (len(busy.asked), len(free.asked)) == (0, 2)


async def test_many_prompts_never_fill_the_waiting_room(serving: Any, connected: Any) -> None:
    """They wait one after the other."""
    async with serving(GatewayConfig(max_waiting=1)) as gateway, connected(gateway, capacity=1):
        reply = await gateway.http.post("/v1/completions", json={"prompt": ["a"] * 20})
        assert reply.status_code == 200
        assert len(reply.json()["choices"]) == 20


async def test_a_storm_of_cancellations_leaves_nothing(gateway: Any, connected: Any, scripts: Any, chat: Any) -> None:
    """Slots are given back exactly once, whenever the client goes."""

    async def slow(agent: Any, asked: Any) -> None:
        await asyncio.sleep(0.005)
        await scripts.answer(agent, asked)

    async with connected(gateway, slow, capacity=3):
        tasks = [asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat)) for _ in range(30)]
        for at, task in enumerate(tasks):
            await asyncio.sleep(0.002)
            if at % 2:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await gateway.until(lambda: gateway.dispatcher.running == 0 and gateway.dispatcher.waiting == 0)
        assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200


async def test_a_long_queue_is_served_at_once_by_a_large_agent(
    serving: Any, connected: Any, scripts: Any, chat: Any
) -> None:
    """However many wait."""
    async with serving(GatewayConfig(max_waiting=500)) as gateway, connected(gateway, scripts.hang, capacity=1) as busy:
        first = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: busy.asked)
        body = {"prompt": "x", "max_tokens": 1}
        rest = [asyncio.create_task(gateway.http.post("/v1/completions", json=body)) for _ in range(90)]
        await gateway.until(lambda: gateway.dispatcher.waiting == 90)
        async with connected(gateway, capacity=200):
            assert {reply.status_code for reply in await asyncio.gather(*rest)} == {200}
        first.cancel()
