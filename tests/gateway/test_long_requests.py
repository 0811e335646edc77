"""Requests of megabytes over slow links: nobody else notices, and the link lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fault_proxy import FaultProxy, Faults

import wire.connection
from gateway.config import GatewayConfig
from wire.limits import GATEWAY_LINK
from wire.request_messages import Accepted, Delta, Done, Finished, ServedModel

SLOW = Faults(bytes_s=200_000)
LONG = {"messages": [{"role": "user", "content": "x" * (4 * 2**20 - 4096)}]}


@asynccontextmanager
async def behind(proxy: FaultProxy, gateway: Any, connected: Any, *arguments: Any, **named: Any) -> AsyncIterator[Any]:
    """A scripted agent whose way to the gateway is the proxy."""

    class There:
        ws_url = proxy.url

    async with connected(There, *arguments, **named) as agent:
        yield agent


async def ticking(agent: Any, asked: Any) -> None:
    """A token every 50 ms, fifty of them; a long request is answered at once."""
    agent.post(Accepted(asked.request, 5))
    count = 1 if asked.request_id.startswith("long") else 50
    for number in range(count):
        agent.post(Delta(asked.request, 0, f"{number} ", 1))
        await asyncio.sleep(0.05)
    agent.post(Finished(asked.request, 0, "stop"))
    agent.post(Done(asked.request, 5, count))


async def gaps_of(gateway: Any, chat: Any) -> list[float]:
    """Seconds between the pieces of a streamed answer, which is complete."""
    clock = asyncio.get_running_loop().time
    gaps, last, text = [], clock(), ""
    async with gateway.http.stream("POST", "/v1/chat/completions", json=chat | {"stream": True}) as reply:
        assert reply.status_code == 200
        async for piece in reply.aiter_text():
            now = clock()
            gaps.append(now - last)
            last = now
            text += piece
    assert "data: [DONE]" in text and "49 " in text
    return gaps


async def test_a_long_request_over_a_slow_link_is_nobodys_silence(
    gateway: Any, connected: Any, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 MB that take longer than a peer may be silent: the tokens of another request keep coming all the while, the
    link lives, and the long request is answered. A short one passes it."""
    monkeypatch.setattr(wire.connection, "DEAD_AFTER_S", 3.0)
    monkeypatch.setattr(wire.connection, "HEARTBEAT_S", 1.0)
    async with FaultProxy(gateway.ws_url, Faults(bytes_s=500_000)) as slow:
        async with behind(slow, gateway, connected, ticking) as agent:
            long = asyncio.create_task(
                gateway.http.post("/v1/chat/completions", json=chat | LONG, headers={"x-request-id": "long"})
            )
            link = gateway.roster.links[0]
            await gateway.until(lambda: link.record.crowded or link.stream.queued_bytes > 2**20)
            gaps = await gaps_of(gateway, chat)
            assert not long.done() and len(agent.asked) == 1, "the short request went ahead of the long one"
            assert sorted(gaps[1:])[len(gaps) // 2] < 0.5 and max(gaps) < 4, "sent whole it would be 8 s"
            assert (await long).status_code == 200
        assert slow.connections == 1


async def test_posts_beyond_what_a_link_takes_wait_or_are_refused_and_the_link_lives(
    serving: Any, connected: Any, chat: Any
) -> None:
    """Thirty posts of 4 MB: those for which there is no time get a 503 and when to come back, another tenant's short
    and long ones find room, and none of the bytes stays behind."""
    config = GatewayConfig(wait_within_s=1.0, api_keys="greedy,other")
    async with (
        serving(config) as gateway,
        FaultProxy(gateway.ws_url, SLOW) as slow,
        behind(slow, gateway, connected, ticking, capacity=64) as agent,
    ):
        greedy, other = ({"authorization": f"Bearer {key}"} for key in ("greedy", "other"))
        posts = [
            asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat | LONG, headers=greedy))
            for _ in range(30)
        ]
        link = gateway.roster.links[0]
        await asyncio.wait(posts, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert link.record.crowded and link.stream.queued_bytes < 2 * 4 * 2**20
        small = await gateway.http.post("/v1/chat/completions", json=chat, headers=other | {"x-request-id": "long"})
        assert small.status_code == 200
        middle = {"messages": [{"role": "user", "content": "x" * 200_000}]}
        theirs = await gateway.http.post(
            "/v1/chat/completions", json=chat | middle, headers=other | {"x-request-id": "long"}
        )
        assert theirs.status_code == 200
        replies = [post.result() for post in posts if post.done()]
        assert len(replies) >= 28 - 1
        assert {reply.status_code for reply in replies} == {503}
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in replies)
        assert {reply.json()["error"]["code"] for reply in replies} == {"overloaded"}
        for post in posts:
            post.cancel()
        await asyncio.gather(*posts, return_exceptions=True)
        await gateway.until(lambda: not link.stream.queued_bytes)
        assert len(gateway.roster.links) == 1 and slow.connections == 1 and len(agent.asked) == 2


async def test_who_hangs_up_takes_the_bytes_along(gateway: Any, connected: Any, chat: Any) -> None:
    """Those that have not left leave the queue, and the agent never hears of the request."""
    async with FaultProxy(gateway.ws_url, SLOW) as slow, behind(slow, gateway, connected, ticking) as agent:
        link = gateway.roster.links[0]
        async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as client:
            post = asyncio.create_task(client.post("/v1/chat/completions", json=chat | LONG))
            await gateway.until(lambda: link.stream.queued_bytes > 2**20)
            post.cancel()
            await asyncio.gather(post, return_exceptions=True)
        await gateway.until(lambda: not link.stream.queued_bytes)
        assert link.busy == 0
        reply = await gateway.http.post("/v1/chat/completions", json=chat, headers={"x-request-id": "long"})
        assert reply.status_code == 200 and len(agent.asked) == 1 and not agent.cancelled


async def test_another_agent_is_tried_where_a_link_is_crowded(
    gateway: Any, connected: Any, chat: Any, scripts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a request waits."""
    monkeypatch.setattr("gateway.agents.CROWDED_BYTES", 2**20)
    async with FaultProxy(gateway.ws_url, SLOW) as slow, behind(slow, gateway, connected, ticking) as one:
        link = gateway.roster.links[0]
        post = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat | LONG))
        await gateway.until(lambda: link.record.crowded)
        async with connected(gateway, name="two") as two:
            for _ in range(3):
                assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200
            assert (len(one.asked), len(two.asked)) == (0, 3)
        post.cancel()


async def test_a_prompt_that_cannot_fit_is_refused_at_the_door(gateway: Any, connected: Any, chat: Any) -> None:
    """By what the agent has said of its model, and nothing is sent."""
    model = ServedModel("demo/model", 4096, 1, [], 4096 * 20)
    async with connected(gateway, models=(model,)) as agent:
        sent = gateway.roster.links[0].stream.sent_bytes
        reply = await gateway.http.post("/v1/chat/completions", json=chat | LONG)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert not agent.asked and gateway.roster.links[0].stream.sent_bytes == sent
        assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200


def test_the_longest_body_fits_the_link() -> None:
    """So that no request that is let in is too large to be sent."""
    assert GatewayConfig().max_body_bytes < GATEWAY_LINK.header_bytes
