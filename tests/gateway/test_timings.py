"""Where the time of an answer went, as clients are told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from websockets.asyncio.client import connect

from wire.request_messages import Accepted, Delta, Done, Finished, Spent, Timings

TOLD = {
    "prompt": {"device_ms": 1.5, "link_ms": 20.25, "queue_ms": 0.0, "step_ms": 3.0},
    "decode": {"device_ms": 4.0, "link_ms": 50.0, "queue_ms": 0.001, "step_ms": 6.0, "rounds": 7},
}


async def timed(agent: Any, asked: Any) -> None:
    """An agent that says where the time went."""
    agent.post(Accepted(asked.request, 5))
    for index in range(asked.n):
        agent.post(Delta(asked.request, index, "Hello", 1))
        timings = Timings(Spent(1500, 20_250, 0, 3000), Spent(4000, 50_000, 1, 6000), 7)
        agent.post(Finished(asked.request, index, "stop", timings))
    agent.post(Done(asked.request, 5, asked.n))


@pytest.fixture
async def timing(gateway: Any, connected: Any) -> Any:
    """An agent that says it."""
    async with connected(gateway, timed) as scripted:
        yield scripted


async def chunks(gateway: Any, endpoint: str, body: Any) -> list[Any]:
    """The chunks of a streamed answer."""
    lines = (await gateway.http.post(f"/v1/{endpoint}", json=body | {"stream": True})).text.split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


@pytest.mark.parametrize("endpoint", ["chat/completions", "completions"])
async def test_over_http(gateway: Any, timing: Any, chat: Any, endpoint: Any) -> None:
    """In the whole reply and in the chunk with the usage, in no other; OpenAI's types take both."""
    is_chat = endpoint.startswith("chat")
    body = chat if is_chat else {"prompt": "Hi"}
    whole = (await gateway.http.post(f"/v1/{endpoint}", json=body)).json()
    assert whole["timings"] == TOLD
    (ChatCompletion if is_chat else Completion).model_validate(whole, strict=True)
    *others, last = await chunks(gateway, endpoint, body | {"stream_options": {"include_usage": True}})
    assert last["timings"] == TOLD and last["usage"]["total_tokens"] == 6
    (ChatCompletionChunk if is_chat else Completion).model_validate(last, strict=True)
    assert not any("timings" in chunk for chunk in [*others, *await chunks(gateway, endpoint, body)])


async def test_of_several_choices_the_token_socket_alone_tells(gateway: Any, timing: Any, chat: Any) -> None:
    """They ran side by side: no one breakdown is that of the reply."""
    assert "timings" not in (await gateway.http.post("/v1/chat/completions", json=chat | {"n": 2})).json()
    async with connect(f"{gateway.ws_url}/v1/stream", proxy=None) as socket:
        await socket.send(json.dumps(chat | {"n": 2}))
        messages: list[Any] = [{"type": ""}]
        while messages[-1]["type"] != "done":
            messages.append(json.loads(await asyncio.wait_for(socket.recv(), 60)))
    assert [each["timings"] for each in messages if each["type"] == "finished"] == [TOLD, TOLD]


async def test_an_agent_that_does_not_say(gateway: Any, agent: Any, chat: Any) -> None:
    """The member is not there."""
    assert "timings" not in (await gateway.http.post("/v1/chat/completions", json=chat)).json()
