"""One client beside another at the real door: what a greedy one has, and what is left for the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.config import GatewayConfig
from wire.request_messages import Accepted, Delta, Done, Finished

KEYS = GatewayConfig(api_keys="a,b,c,d", max_waiting=6)


def post(gateway: Any, key: str, chat: Any, **members: Any) -> asyncio.Task[Any]:
    """A request of the tenant with this key."""
    headers = {"authorization": f"Bearer {key}"}
    return asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat | members, headers=headers))


async def ended(tasks: Any) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def by_size(agent: Any, asked: Any) -> None:
    """Answer requests for few tokens, accept the others and let them hang."""
    agent.post(Accepted(asked.request, 5))
    agent.post(Delta(asked.request, 0, "Well", 1))
    if asked.max_tokens == 5:
        agent.post(Finished(asked.request, 0, "stop"))
        agent.post(Done(asked.request, 5, 1))


async def test_beside_a_greedy_client_others_are_answered_at_once(serving: Any, connected: Any, chat: Any) -> None:
    """128 choices, then many more requests: they get three quarters of the agent, and whoever comes new the rest."""
    async with serving(KEYS) as gateway, connected(gateway, by_size, capacity=32) as agent:
        greedy = [post(gateway, "a", chat, n=128, max_tokens=1500)]
        await gateway.until(lambda: agent.asked)
        assert (agent.asked[0].n, agent.asked[0].at_once) == (128, 24)
        agent.state(24, True)  # What it says itself is no load from elsewhere.
        await gateway.until(lambda: gateway.roster.links[0].record.cloud_connected)
        assert gateway.roster.links[0].record.running == 24 and gateway.roster.running == 1
        greedy += [post(gateway, "a", chat, max_tokens=1500) for _ in range(20)]
        await gateway.until(lambda: len(gateway.roster.waiting) == 6)
        for key in ("b", "c", "b"):
            assert (await post(gateway, key, chat, max_tokens=5)).status_code == 200
        await ended(greedy)


async def test_one_choice_after_another_gets_no_more(serving: Any, connected: Any, chat: Any) -> None:
    """80 requests of one choice are as greedy; two such clients leave something for a third."""
    async with serving(KEYS) as gateway, connected(gateway, by_size, capacity=32) as agent:
        greedy = [post(gateway, "a", chat) for _ in range(80)]
        await gateway.until(lambda: sum(task.done() for task in greedy) == 80 - 24 - 6)
        assert {task.result().status_code for task in greedy if task.done()} == {429}
        greedy += [post(gateway, "b", chat) for _ in range(80)]
        await gateway.until(lambda: sum(task.done() for task in greedy) >= 160 - 24 - 6 - 6)
        assert len(agent.asked) == 24 + 6
        assert (await post(gateway, "c", chat, max_tokens=5)).status_code == 200
        await ended(greedy)


async def test_a_newcomer_is_next_where_all_is_taken(serving: Any, connected: Any, chat: Any) -> None:
    """A full agent and a full room: it waits for an answer or two to end, not for all that came before."""
    ends = asyncio.Queue[int]()

    async def one_by_one(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 5))
        await ends.get()
        agent.post(Finished(asked.request, 0, "stop"))
        agent.post(Done(asked.request, 5, 1))

    async with serving(KEYS) as gateway, connected(gateway, one_by_one, capacity=2) as agent:
        open_ = [post(gateway, "a", chat) for _ in range(7)] + [post(gateway, "b", chat)]
        await gateway.until(lambda: len(agent.asked) == 2 and len(gateway.roster.waiting) == 6)
        newcomer = post(gateway, "c", chat)
        await gateway.until(lambda: any(task.done() for task in open_))  # One of a's has lost its place.
        for _ in range(2):
            await ends.put(1)
        await gateway.until(lambda: len(agent.asked) == 4)
        assert len({asked.tenant for asked in agent.asked}) == 3
        for _ in range(2):
            await ends.put(1)
        assert (await newcomer).status_code == 200
        await ended(open_)


async def test_what_has_ended_is_free_for_others(serving: Any, connected: Any, chat: Any) -> None:
    """Choice by choice, as soon as fewer are left than might run at once: who waits has their room."""
    proceed = asyncio.Event()

    async def script(agent: Any, asked: Any) -> None:
        if asked.n == 1:
            return await by_size(agent, asked)
        agent.post(Accepted(asked.request, 5))
        await proceed.wait()
        for index in range(asked.n - 1):
            agent.post(Finished(asked.request, index, "stop"))

    async with serving(KEYS) as gateway, connected(gateway, script, capacity=4) as agent:
        open_ = [post(gateway, "a", chat, n=3), post(gateway, "b", chat)]
        await gateway.until(lambda: len(agent.asked) == 2)
        assert agent.asked[0].at_once == 3
        newcomer = post(gateway, "c", chat, max_tokens=5)
        await gateway.until(lambda: len(gateway.roster.waiting) == 1)
        proceed.set()
        assert (await newcomer).status_code == 200
        assert gateway.roster.links[0].record.running == 2
        await ended(open_)


async def test_whoever_is_alone_has_all(gateway: Any, connected: Any, chat: Any) -> None:
    """On a machine of one's own, without keys, nothing is kept for others who cannot come."""
    async with connected(gateway, by_size, capacity=32) as agent:
        task = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat | {"n": 128}))
        await gateway.until(lambda: agent.asked)
        assert agent.asked[0].at_once == 32
        await ended([task])


async def test_clients_behind_a_local_proxy_are_told_apart(gateway: Any, connected: Any, chat: Any) -> None:
    """By the address it forwards; IPv6 by network; and each may leave the others something."""
    async with connected(gateway, by_size, capacity=32) as agent:
        for address in ("198.51.100.7", "198.51.100.8", "198.51.100.7", "2001:db8::1", "2001:db8::2", None):
            headers = {"x-forwarded-for": address} if address else {}
            body = chat | {"max_tokens": 5}
            assert (await gateway.http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
        one, other, again, six, same, direct = (asked.tenant for asked in agent.asked)
        assert one == again and six == same and direct == "" and len({one, other, six}) == 3
        greedy = gateway.http.post("/v1/chat/completions", json=chat | {"n": 128}, headers={"x-forwarded-for": "::2"})
        task = asyncio.create_task(greedy)
        await gateway.until(lambda: len(agent.asked) == 7)
        assert agent.asked[6].at_once == 24
        await ended([task])


async def test_a_client_has_only_so_many_requests_open(serving: Any, connected: Any, chat: Any) -> None:
    """Waiting or running; 429 for the one too many, which says when to come back, and others are not asked to."""
    config = GatewayConfig(api_keys="a,b", max_client_requests=3)
    async with serving(config) as gateway, connected(gateway, by_size, capacity=2) as agent:
        open_ = [post(gateway, "a", chat) for _ in range(3)]
        await gateway.until(lambda: agent.asked and len(gateway.roster.waiting) == 2)
        refused = await post(gateway, "a", chat)
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
        assert refused.json()["error"]["code"] == "rate_limit_exceeded" and int(refused.headers["retry-after"]) >= 1
        assert (await post(gateway, "b", chat, max_tokens=5)).status_code == 200
        await ended(open_)
        await gateway.until(lambda: gateway.roster.running == 0 == len(gateway.roster.waiting))
        assert (await post(gateway, "a", chat, max_tokens=5)).status_code == 200


@pytest.mark.parametrize("prompts", [1, 20])
async def test_many_prompts_of_one_request_are_one_tenants(
    serving: Any, connected: Any, chat: Any, prompts: Any
) -> None:
    """They wait in its turn, not in everybody's."""
    async with serving(KEYS) as gateway, connected(gateway, by_size, capacity=1) as agent:
        headers = {"authorization": "Bearer a"}
        body = {"prompt": ["x"] * prompts, "max_tokens": 5}
        many = asyncio.create_task(gateway.http.post("/v1/completions", json=body, headers=headers))
        assert (await post(gateway, "b", chat, max_tokens=5)).status_code == 200
        assert (await many).status_code == 200
        assert len(agent.asked) == prompts + 1
