"""Requests to read go the way of prompts: keys, places to wait, several agents, draining, and agents that do wrong."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from gateway_reading import hang_reading, read_back, say

from gateway.config import GatewayConfig
from wire.reading_messages import Read, Vector
from wire.request_messages import Accepted, Delta, Done, ServedModel

READER = ServedModel("m", 64, 1, [], 0, ["embed", "classify"], 2)
BODY = {"input": [[3], [4, 5]]}


@pytest.fixture
async def reader(gateway: Any, connected: Any) -> Any:
    """An agent that says of each input its first id and its length."""
    async with connected(gateway, read_back, models=(READER,), capacity=1) as scripted:
        yield scripted


async def test_a_key_is_asked_for(serving: Any) -> None:
    """As for any other request."""
    async with serving(GatewayConfig(api_keys="secret")) as gateway:
        for path in ("/v1/embeddings", "/v1/classify", "/embeddings"):
            assert (await gateway.http.post(path, json=BODY)).status_code == 401


async def test_where_nobody_reads_it_is_said(gateway: Any, agent: Any) -> None:
    """Of the model that is named, or of the first there is."""
    for body, who in ((BODY, "no model here serves"), ({**BODY, "model": "demo/model"}, "'demo/model' does not serve")):
        answer = await gateway.http.post("/v1/embeddings", json=body)
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert f"{who} /v1/embeddings" in message and message.endswith("serves /v1/completions")


async def test_who_names_no_model_gets_one_that_reads(gateway: Any, agent: Any, reader: Any) -> None:
    """Though the first there is writes; and a prompt goes to the one that writes."""
    answer = await gateway.http.post("/v1/embeddings", json=BODY)
    assert answer.json()["model"] == "m" and [each["embedding"] for each in answer.json()["data"]] == [[3, 1], [4, 2]]
    written = await gateway.http.post("/v1/completions", json={"prompt": "Hi"})
    assert written.json()["model"] == "demo/model" and len(agent.asked) == 1


async def test_it_waits_for_room_and_is_sent_away_where_there_is_no_place(serving: Any, connected: Any) -> None:
    """One is read, one waits, the next is one too many; what was waiting is read once there is room."""
    async with (
        serving(GatewayConfig(max_waiting=1)) as gateway,
        connected(gateway, hang_reading, models=(READER,), capacity=1) as agent,
    ):
        waiting = [asyncio.create_task(gateway.http.post("/v1/embeddings", json=BODY))]
        await gateway.until(lambda: len(agent.asked) == 1)
        waiting.append(asyncio.create_task(gateway.http.post("/v1/classify", json=BODY)))
        await gateway.until(lambda: len(gateway.roster.waiting) == 1)
        refused = await gateway.http.post("/v1/embeddings", json=BODY)
        assert refused.status_code == 429 and "retry-after" in refused.headers
        agent.script = read_back
        say(agent, agent.asked[0])
        answers = await asyncio.gather(*waiting)
        assert [each.status_code for each in answers] == [200, 200]
        assert answers[1].json()["data"][1] == {"index": 1, "label": "", "probs": [4, 2], "num_classes": 2}


async def test_what_is_being_read_is_finished_while_the_gateway_drains(gateway: Any, reader: Any) -> None:
    """And nothing new is taken."""
    reader.script = hang_reading
    reading = asyncio.create_task(gateway.http.post("/v1/embeddings", json=BODY))
    await gateway.until(lambda: reader.asked)
    assert (await gateway.drain()).status_code == 202
    assert (await gateway.http.post("/v1/embeddings", json=BODY)).status_code == 503
    for at in range(2):
        reader.post(Vector(reader.asked[0].request, at, struct.pack("<2f", at, at)))
    reader.post(Done(reader.asked[0].request, 3, 0))
    answer = await reading
    assert answer.status_code == 200
    assert answer.json()["usage"]["total_tokens"] == 2
    metrics = (await gateway.http.get("/metrics")).text
    assert 'trilby_prompt_tokens_total{model_name="m"} 2.0' in metrics
    assert 'trilby_request_success_total{finished_reason="stop",model_name="m"} 2.0' in metrics


async def test_an_agent_that_is_lost_before_it_accepts_costs_nothing(gateway: Any, connected: Any) -> None:
    """The other one reads it; one that is lost later has its client told."""

    async def leave(agent: Any, asked: Read) -> None:
        await agent.cut()

    async def accept_and_leave(agent: Any, asked: Read) -> None:
        agent.post(Accepted(asked.request, 1))
        await agent.cut()

    async with connected(gateway, leave, models=(READER,)):
        async with connected(gateway, read_back, models=(READER,)):
            assert (await gateway.http.post("/v1/embeddings", json=BODY)).status_code == 200
        async with connected(gateway, accept_and_leave, models=(READER,)):
            answer = await gateway.http.post("/v1/embeddings", json=BODY)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "upstream_lost")


def vector(agent: Any, asked: Read, index: int = 0, data: bytes = b"\0" * 8) -> None:
    agent.post(Vector(asked.request, index, data))


def accepted(agent: Any, asked: Read) -> None:
    agent.post(Accepted(asked.request, 3))


@pytest.mark.parametrize(
    "wrongs",
    [
        [vector],
        [accepted, vector, vector],
        [accepted, lambda agent, asked: vector(agent, asked, 2)],
        [accepted, lambda agent, asked: vector(agent, asked, 0, b"\0" * 7)],
        [accepted, lambda agent, asked: agent.post(Delta(asked.request, 0, "text", 1))],
        [accepted, vector, lambda agent, asked: agent.post(Done(asked.request, 3, 0))],
    ],
    ids=["unasked", "twice", "of no input", "no numbers", "text", "not all"],
)
async def test_an_agent_that_breaks_the_protocol_ends_its_request_alone(
    gateway: Any, reader: Any, wrongs: list[Callable[[Any, Read], None]]
) -> None:
    """The client is told, and the next request is answered."""

    async def wrong(agent: Any, asked: Read) -> None:
        for each in wrongs:
            each(agent, asked)

    right: Callable[[Any, Read], Awaitable[None]] = reader.script
    reader.script = wrong
    answer = await gateway.http.post("/v1/embeddings", json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_error")
    reader.script = right
    assert (await gateway.http.post("/v1/embeddings", json=BODY)).status_code == 200


async def test_vectors_that_are_too_many_are_refused_at_the_door(gateway: Any, connected: Any) -> None:
    """By the numbers that the model says it gives, before anybody is asked."""
    wide = ServedModel("m", 64, 1, [], 0, ["embed"], 2**16)
    async with connected(gateway, read_back, models=(wide,)) as agent:
        answer = await gateway.http.post("/v1/embeddings", json={"input": [[1]] * 129})
        assert answer.status_code == 400 and "129 vectors of 65536 numbers" in answer.json()["error"]["message"]
        assert not agent.asked
