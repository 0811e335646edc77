"""Over HTTP: refusals, failures and time limits, and what operators see of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from gateway_streams import client, stream

from gateway.config import GatewayConfig
from wire.message import Failed
from wire.request_messages import Accepted, Delta, Done, Finished


async def test_errors_of_the_framework_have_openais_shape(gateway: Any) -> None:
    """No such path, no such method."""
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("PUT", "/health", 405),
    ):
        response = await gateway.http.request(method, path)
        assert response.status_code == status
        assert response.json()["error"].keys() == {"message", "type", "param", "code"}
    assert {each.strip() for each in response.headers["allow"].split(",")} == {"GET", "HEAD"}


async def test_probes_may_ask_for_the_head_only(gateway: Any, agent: Any) -> None:
    """The status is all they look at."""
    for path in ("/live", "/health", "/ready"):
        response = await gateway.http.head(path)
        assert (response.status_code, response.content) == (200, b"")


async def test_nobody_there(gateway: Any, chat: Any) -> None:
    """503 with what to do and when to come back."""
    response = await gateway.http.post("/v1/chat/completions", json=chat)
    assert response.status_code == 503
    assert "trilby device --gateway ws://" in response.json()["error"]["message"]
    assert response.json()["error"]["code"] == "no_agent"
    assert int(response.headers["retry-after"]) > 0


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("code", "status", "type_", "shown"),
    [
        ("context_length_exceeded", 400, "invalid_request_error", "context_length_exceeded"),
        ("invalid_request", 400, "invalid_request_error", "invalid_value"),
        ("overloaded", 503, "server_error", "overloaded"),
        ("upstream_lost", 503, "server_error", "upstream_lost"),
        ("timeout", 504, "server_error", "timeout"),
        ("bad_position", 502, "server_error", "upstream_error"),
        ("some_future_code", 500, "server_error", "internal_error"),
    ],
)
async def test_an_agents_refusal_keeps_its_status_even_for_a_stream(
    gateway: Any, connected: Any, chat: Any, streamed: Any, code: Any, status: Any, type_: Any, shown: Any
) -> None:
    """Headers wait for the agent's acceptance."""

    async def refuse(agent: Any, asked: Any) -> None:
        agent.post(Failed(code, "no", asked.request, "messages", 3.2))

    async with connected(gateway, refuse):
        response = await gateway.http.post("/v1/chat/completions", json=chat | {"stream": streamed})
        assert response.status_code == status
        assert response.json() == {"error": {"message": "no", "type": type_, "param": "messages", "code": shown}}
        assert ("retry-after" in response.headers) is (status == 503)
        if status == 503:
            assert response.headers["retry-after"] == "4"


async def test_a_failure_in_mid_stream_is_an_event_and_the_end(gateway: Any, connected: Any, chat: Any) -> None:
    """No [DONE], no reason to finish."""

    async def break_down(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 2))
        agent.post(Delta(asked.request, 0, "Well", 1))
        agent.post(Failed("upstream_lost", "the cloud is gone", asked.request))

    async with connected(gateway, break_down):
        _, events = await stream(gateway, "/v1/chat/completions", chat | {"stream": True})
        assert json.loads(events[1])["choices"][0]["delta"] == {"content": "Well"}
        assert json.loads(events[-1]) == {
            "error": {"message": "the cloud is gone", "type": "server_error", "param": None, "code": "upstream_lost"}
        }
        whole = await gateway.http.post("/v1/chat/completions", json=chat)
        assert whole.status_code == 503


async def test_an_agent_that_breaks_the_protocol_ends_one_request(
    gateway: Any, connected: Any, chat: Any, scripts: Any
) -> None:
    """Text before acceptance, of a choice that is not open, or done too early."""

    async def early(agent: Any, asked: Any) -> None:
        agent.post(Delta(asked.request, 0, "x", 1))

    async def foreign(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 1))
        agent.post(Delta(asked.request, 7, "x", 1))
        agent.post(Delta(asked.request, 7, "x", 1))

    async def unfinished(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 1))
        agent.post(Done(asked.request, 1, 1))

    async def twice(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 1))
        agent.post(Finished(asked.request, 0, "stop"))
        agent.post(Finished(asked.request, 0, "stop"))

    async with connected(gateway) as agent:
        for script in (early, foreign, unfinished, twice):
            agent.script = script
            response = await gateway.http.post("/v1/chat/completions", json=chat)
            assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_error")
        agent.script = scripts.answer
        assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200


async def test_keep_alive_comments_while_the_agent_thinks(gateway: Any, connected: Any, chat: Any) -> None:
    """Comments only when idle, and clients do not see them."""

    async def think(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 2))
        await asyncio.sleep(0.4)
        agent.post(Delta(asked.request, 0, "Well", 1))
        agent.post(Finished(asked.request, 0, "stop"))
        agent.post(Done(asked.request, 2, 1))

    async with connected(gateway, think):
        async with gateway.http.stream("POST", "/v1/chat/completions", json=chat | {"stream": True}) as response:
            text = (await response.aread()).decode()
        assert 1 <= text.count(": keep-alive\n\n") <= 8
        api = client(gateway)
        streamed = await api.chat.completions.create(**chat, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in streamed]) == "Well"
        await api.close()


async def test_health_metrics_and_state(gateway: Any, agent: Any, chat: Any) -> None:
    """For probes, for scrapers, for people."""
    assert (await gateway.http.get("/health")).json() == {"status": "ok"}
    await gateway.http.post("/v1/chat/completions", json=chat)
    text = (await gateway.http.get("/metrics")).text
    assert 'trilby_request_success_total{finished_reason="stop",model_name="demo/model"} 1.0' in text
    assert 'trilby_generation_tokens_total{model_name="demo/model"} 4.0' in text
    assert 'trilby_time_to_first_token_seconds_count{model_name="demo/model"} 1.0' in text
    assert "trilby_num_requests_running 0.0" in text
    agent.state(3, True)
    await gateway.until(lambda: gateway.roster.links[0].record.running == 3)
    state = (await gateway.http.get("/state")).json()
    assert state["agents"][0]["name"] == "scripted"
    assert state["agents"][0]["cloud_connected"] is True
    assert (state["running"], state["waiting"], state["draining"]) == (0, 0, False)


async def test_drain(gateway: Any, connected: Any, chat: Any, scripts: Any) -> None:
    """Nothing new, the open request is finished, the agent and the probe are told."""
    release = asyncio.Event()

    async def slow(agent: Any, asked: Any) -> None:
        await release.wait()
        await scripts.answer(agent, asked)

    async with connected(gateway, slow) as agent:
        running = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: agent.asked)
        response = await gateway.drain()
        assert (response.status_code, response.json()) == (202, {"status": "draining", "running": 1})
        assert (await gateway.http.get("/health")).status_code == 503
        assert (await gateway.http.get("/live")).status_code == 200, "who is draining must not be ended for it"
        refused = await gateway.http.post("/v1/chat/completions", json=chat)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        await gateway.until(lambda: agent.drained)
        waiting = asyncio.create_task(gateway.dispatcher.drain())
        release.set()
        assert (await running).status_code == 200
        assert await waiting is True


async def test_the_time_limit_ends_a_request_and_cancels_it(
    serving: Any, connected: Any, scripts: Any, chat: Any
) -> None:
    """504, which the SDK does not repeat; in a stream an event."""
    async with serving(GatewayConfig(request_within_s=0.2)) as gateway, connected(gateway, scripts.hang) as agent:
        response = await gateway.http.post("/v1/chat/completions", json=chat)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
        assert response.headers["x-should-retry"] == "false"
        _, events = await stream(gateway, "/v1/chat/completions", chat | {"stream": True})
        assert json.loads(events[-1])["error"]["code"] == "timeout"
        await gateway.until(lambda: len(agent.cancelled) == 2)
