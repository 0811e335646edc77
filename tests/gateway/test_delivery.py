"""Whoever stops listening stops the work, whatever way the answer goes."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from gateway_unread import LONG, asking, begin, ends, much, read
from structlog.testing import capture_logs
from websockets.asyncio.client import connect

from gateway import answer as answer_module
from gateway.config import GatewayConfig
from wire.request_messages import Accepted, Delta, Done, Finished


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_disconnects_cancels(
    gateway: Any, connected: Any, scripts: Any, chat: Any, streamed: Any
) -> None:
    """The agent hears of it at once and its slot is free."""
    async with connected(gateway, scripts.hang) as agent:
        body = json.dumps(chat | {"stream": streamed}).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await gateway.until(lambda: agent.asked)
        assert gateway.roster.running == 1
        writer.close()
        await gateway.until(lambda: agent.cancelled == [agent.asked[0].request])
        await gateway.until(lambda: gateway.roster.running == 0)


async def test_a_client_that_disconnects_before_acceptance_cancels(
    gateway: Any, connected: Any, scripts: Any, chat: Any
) -> None:
    """There is no moment at which nobody watches."""
    async with connected(gateway, scripts.silent) as agent:
        task = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: agent.asked)
        task.cancel()
        await gateway.until(lambda: len(agent.cancelled) == 1)


async def test_a_client_that_disconnects_while_waiting_leaves_the_queue(
    gateway: Any, connected: Any, scripts: Any, chat: Any
) -> None:
    """And the agent never hears of it."""
    async with connected(gateway, scripts.hang, capacity=1) as agent:
        running = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: agent.asked)
        waiting = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: len(gateway.roster.waiting) == 1)
        waiting.cancel()
        await gateway.until(lambda: len(gateway.roster.waiting) == 0)
        running.cancel()
        await gateway.until(lambda: gateway.roster.running == 0)
        assert len(agent.asked) == 1


async def test_all_prompts_of_a_request_are_cancelled(gateway: Any, connected: Any, scripts: Any) -> None:
    """Those that run and those that would come."""
    async with connected(gateway, scripts.hang, capacity=2) as agent:
        task = asyncio.create_task(gateway.http.post("/v1/completions", json={"prompt": ["a", "b", "c"]}))
        await gateway.until(lambda: len(agent.asked) == 2 and len(gateway.roster.waiting) == 1)
        task.cancel()
        await gateway.until(lambda: len(agent.cancelled) == 2)
        await gateway.until(lambda: len(gateway.roster.waiting) == 0)


async def flood(agent: Any, asked: Any) -> None:
    """A script: more than anybody reads, until the request is cancelled."""
    agent.post(Accepted(asked.request, 1))
    while not agent.cancelled:
        for _ in range(50):
            agent.post(Delta(asked.request, 0, "x" * 20_000, 1))
        await asyncio.sleep(0.01)


async def test_a_client_that_never_reads_is_given_up(serving: Any, connected: Any, chat: Any) -> None:
    """Within the time for reading; the agent is told; memory stays bounded."""

    async with serving(GatewayConfig(client_within_s=0.3)) as gateway, connected(gateway, flood) as agent:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", gateway.port))
        body = json.dumps(chat | {"stream": True}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await gateway.until(lambda: len(agent.cancelled) == 1)
        await gateway.until(lambda: gateway.roster.running == 0)
        client.close()


REPEATED = 3 * 2**20
"""Of a response's text, which its end has four times; no more than may wait for a client."""


async def test_a_client_that_does_not_read_a_whole_answer_is_given_up(serving: Any, connected: Any, chat: Any) -> None:
    """Within the time for reading, as in a stream; who reads gets all of it."""
    path = "/v1/chat/completions"
    async with serving(GatewayConfig(client_within_s=0.3)) as gateway, connected(gateway, much):
        with capture_logs() as logs, asking(gateway, path, chat):
            await gateway.until(lambda: ends(logs))
            assert ends(logs) == ["aborted"]
    async with serving(GatewayConfig()) as gateway, connected(gateway, much):
        reply = await gateway.http.post(path, json=chat)
        assert reply.json()["choices"][0]["message"]["content"] == "x" * LONG


async def test_a_client_that_does_not_read_the_end_of_a_stream_is_given_up(serving: Any, connected: Any) -> None:
    """Where it is long, and all before it was read."""
    go_on = asyncio.Event()

    async def repeated(agent: Any, asked: Any) -> None:
        begin(agent, asked, REPEATED)
        await go_on.wait()
        agent.post(Finished(asked.request, 0, "stop"))
        agent.post(Done(asked.request, 1, REPEATED // 2**20))

    body = {"input": "Hi", "stream": True}
    async with serving(GatewayConfig(client_within_s=1.0)) as gateway, connected(gateway, repeated):
        with capture_logs() as logs, asking(gateway, "/v1/responses", body) as client:
            await read(client, REPEATED)
            go_on.set()
            await gateway.until(lambda: ends(logs))
            assert ends(logs) == ["aborted"]
        reply = await gateway.http.post("/v1/responses", json=body)
        assert reply.content.count(b"x" * REPEATED) == 4 and reply.content.endswith(b"}\n\n")


async def test_an_answer_that_is_cut_is_over_at_the_agent(
    serving: Any, connected: Any, scripts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, however long its client takes to read what it has."""
    monkeypatch.setattr(answer_module, "MAX_WHOLE_LOGPROBS", 0)
    go_on = asyncio.Event()

    async def goes_on(agent: Any, asked: Any) -> None:
        begin(agent, asked, REPEATED)
        await go_on.wait()
        agent.post(Delta(asked.request, 0, "x", 1, [scripts.logprob("x", 0)]))

    body = {"input": "Hi", "stream": True}
    async with serving(GatewayConfig(client_within_s=600)) as gateway, connected(gateway, goes_on) as agent:
        with asking(gateway, "/v1/responses", body) as client:
            await read(client, REPEATED)
            go_on.set()
            await gateway.until(lambda: agent.cancelled == [agent.asked[0].request])
            assert gateway.roster.running == 0 and gateway.dispatcher._open


async def test_a_token_socket_that_never_reads_is_given_up(serving: Any, connected: Any, chat: Any) -> None:
    """The same for a websocket."""

    async with serving(GatewayConfig(client_within_s=0.3)) as gateway, connected(gateway, flood) as agent:
        client = await connect(f"{gateway.ws_url}/v1/stream", max_queue=1, close_timeout=0.1, proxy=None)
        await client.send(json.dumps(chat))
        await gateway.until(lambda: len(agent.cancelled) == 1)
        client.transport.abort()
        await client.wait_closed()


async def test_the_loss_of_an_agent_is_told_in_both_ways(gateway: Any, connected: Any, scripts: Any, chat: Any) -> None:
    """503 for a whole answer, an event in a stream; nobody waits for ever."""
    for streamed in (False, True):
        async with connected(gateway, scripts.hang) as agent:
            task = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat | {"stream": streamed}))
            await gateway.until(lambda agent=agent: agent.asked)
            (link,) = gateway.roster.links
            await gateway.until(lambda link=link: all(ticket.accepted.done() for _, ticket in link._asked.values()))
            await agent.cut()
            response = await task
            assert response.status_code == (200 if streamed else 503)
            assert '"code":"upstream_lost"' in response.text
            assert "[DONE]" not in response.text


async def test_only_an_answer_in_one_piece_has_a_largest_size(
    gateway: Any, agent: Any, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream keeps nothing that was sent."""
    monkeypatch.setattr(answer_module, "MAX_ANSWER", 100)
    whole = await gateway.http.post("/v1/chat/completions", json=chat)
    assert (whole.status_code, whole.json()["error"]["code"]) == (500, "answer_too_large")
    streamed = await gateway.http.post("/v1/chat/completions", json=chat | {"stream": True})
    assert streamed.text.endswith("data: [DONE]\n\n")
