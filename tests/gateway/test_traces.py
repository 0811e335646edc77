"""The gateway's part of a trace: taken in from clients, carried to agents, and no client's word in it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kept_spans import KeptTraces
from websockets.asyncio.client import connect

from gateway.config import GatewayConfig
from wire.errors import Code
from wire.message import Failed

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
ABOVE = f"00-{TRACE}-00f067aa0ba902b7-01"
IN = {"traceparent": ABOVE, "x-request-id": "r-1"}


@pytest.fixture
def traces() -> KeptTraces:
    """All spans."""
    return KeptTraces()


@pytest.fixture
async def traced(serving: Any, traces: KeptTraces) -> AsyncIterator[Any]:
    """A gateway whose spans are kept."""
    async with serving(GatewayConfig(), traces=traces) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
async def test_a_requests_span_goes_on_at_the_agent(
    traced: Any, traces: KeptTraces, connected: Any, chat: Any, stream: bool
) -> None:
    """The client's trace is gone on with; the agent is told this gateway's span, and the span what came of it."""
    async with connected(traced) as agent:
        reply = await traced.http.post("/v1/chat/completions", json={**chat, "stream": stream}, headers=IN)
        assert reply.status_code == 200
        await traced.until(lambda: traces.spans[0].ended)
        [asked] = agent.asked
    request, queue = traces.spans
    assert request.name == "POST /v1/chat/completions" and request.parent == ABOVE and queue.parent == asked.traceparent
    assert asked.traceparent == request.traceparent and queue.name == "queue" and queue.ended == request.ended == 1
    facts = {"request_id": "r-1", "endpoint": "chat.completions", "outcome": "answered", "status": 200, "choices": 1}
    assert facts.items() <= request.facts.items() and request.facts["streamed"] is stream
    assert request.facts["completion_tokens"] == 4 and request.facts["model"] == "demo/model"
    assert [name for name, _ in request.events] == ["accepted", "first token"] and not request.code


async def test_each_prompt_of_a_request_is_in_its_trace(traced: Any, connected: Any, traces: KeptTraces) -> None:
    """Whichever agents have them; it waits for the first only."""
    async with connected(traced) as agent:
        reply = await traced.http.post("/v1/completions", json={"prompt": ["a", "b", "c"]}, headers=IN)
        assert reply.status_code == 200
    assert {each.traceparent for each in agent.asked} == {traces.spans[0].traceparent} and len(agent.asked) == 3
    assert [each.name for each in traces.spans] == ["POST /v1/completions", "queue"]


async def test_without_traces_the_context_goes_through(gateway: Any, agent: Any, chat: Any) -> None:
    """A gateway that keeps none names the client's span to the agent; a malformed one to nobody."""
    for given, told in ((ABOVE, ABOVE), ("of my own", ""), (None, "")):
        headers = {} if given is None else {"traceparent": given}
        await gateway.http.post("/v1/chat/completions", json=chat, headers=headers)
        assert agent.asked[-1].traceparent == told


async def test_a_refusal_is_a_code(traced: Any, traces: KeptTraces, connected: Any, chat: Any) -> None:
    """Before any agent is asked, and after; a client's words are in neither."""
    bad = await traced.http.post("/v1/chat/completions", json={**chat, "temperature": "Wilhelmina"}, headers=IN)
    none = await traced.http.post("/v1/chat/completions", json={**chat, "model": "Wilhelmina"}, headers=IN)

    async def refuse(agent: Any, asked: Any) -> None:
        agent.post(Failed(Code.INVALID_REQUEST.value, "Wilhelmina cannot be", asked.request))

    async with connected(traced, refuse):
        late = await traced.http.post("/v1/chat/completions", json=chat, headers=IN)
    assert [each.status_code for each in (bad, none, late)] == [400, 503, 400]
    requests = traces.named("POST /v1/chat/completions")
    assert [each.facts["status"] for each in requests] == [400, 503, 400] and all(each.code for each in requests)
    assert all(each.ended == 1 for each in traces.spans)
    assert "Wilhelmina" not in str([(each.name, each.facts, each.events, each.code) for each in traces.spans])


async def test_what_is_no_request_has_no_span(traced: Any, traces: KeptTraces) -> None:
    """Probes, scrapers, unknown paths and strangers' methods cost nobody a span."""
    for path in ("/health", "/metrics", "/v1/models", "/v1/nothing", "/state"):
        await traced.http.get(path, headers=IN)
    await traced.http.post("/v1/Wilhelmina", json={}, headers=IN)
    assert traces.spans == []


async def test_another_agent_is_tried_within_the_trace(
    traced: Any, traces: KeptTraces, connected: Any, scripts: Any, chat: Any
) -> None:
    """Each is told the same span; that one has turned it away is said with its code."""

    async def full(agent: Any, asked: Any) -> None:
        agent.post(Failed(Code.OVERLOADED.value, "full", asked.request))

    async with connected(traced, full, name="a") as one, connected(traced, scripts.answer, name="b", capacity=1) as two:
        reply = await traced.http.post("/v1/chat/completions", json=chat, headers=IN)
        assert reply.status_code == 200
    [request] = traces.named("POST /v1/chat/completions")
    assert {each.traceparent for each in (*one.asked, *two.asked)} == {request.traceparent}
    turned_away = [facts for name, facts in request.events if name == "turned away"]
    assert turned_away == [{"code": "overloaded"}] * len(one.asked) and len(two.asked) == 1


async def test_a_sockets_requests_are_spans_of_its_trace(traced: Any, traces: KeptTraces, connected: Any) -> None:
    """Each request on a token websocket has a span, under the context of the handshake."""
    url = f"{traced.ws_url}/v1/stream"
    async with connected(traced) as agent, connect(url, proxy=None, additional_headers=IN) as socket:
        for _ in range(2):
            await socket.send(json.dumps({"prompt": "Hi"}))
            while json.loads(await socket.recv())["type"] != "done":
                pass
    await traced.until(lambda: all(each.ended for each in traces.spans))
    requests = traces.named("websocket /v1/stream")
    assert [each.facts["request_id"] for each in requests] == ["r-1-1", "r-1-2"]
    assert {each.parent for each in requests} == {ABOVE} and {each.facts["outcome"] for each in requests} == {
        "answered"
    }
    assert [each.traceparent for each in agent.asked] == [each.traceparent for each in requests]
