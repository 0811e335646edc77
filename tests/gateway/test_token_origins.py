"""Where tokens came from, as clients are told that ask for it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from gateway_streams import stream
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from websockets.asyncio.client import connect

from wire.origins import Origin, Spent
from wire.request_messages import Accepted, Delta, Done, Finished

SAID = [
    ("Hel", [Origin(0, "", 12_500, Spent(1500, 9000, 0, 2000))]),
    ("", [Origin(1, "adapter", 20_000, Spent(0, 20_000, 0, 0))]),
    ("lo", [Origin(1)]),
    ("", [Origin(2, "", 750)]),
]
FIRST = {
    "round": 0, "drafter": None, "took_ms": 12.5,
    "timings": {"device_ms": 1.5, "link_ms": 9.0, "queue_ms": 0.0, "step_ms": 2.0},
}  # fmt: skip
DRAFTED = {
    "round": 1, "drafter": "adapter", "took_ms": 20.0,
    "timings": {"device_ms": 0.0, "link_ms": 20.0, "queue_ms": 0.0, "step_ms": 0.0},
}  # fmt: skip
OWN, LAST = {"round": 1, "drafter": None}, {"round": 2, "drafter": None, "took_ms": 0.75}
ASKED = {"return_token_origins": True}


async def telling(agent: Any, asked: Any) -> None:
    """An agent that says where tokens came from, where that is asked."""
    agent.post(Accepted(asked.request, 5))
    for text, origins in SAID:
        told = origins if asked.return_token_origins else None
        agent.post(Delta(asked.request, 0, text, 1, origins=told))
    agent.post(Finished(asked.request, 0, "stop"))
    agent.post(Done(asked.request, 5, 4))


@pytest.fixture
async def teller(gateway: Any, connected: Any) -> Any:
    """An agent that does."""
    async with connected(gateway, telling) as scripted:
        yield scripted


@pytest.mark.parametrize("endpoint", ["chat/completions", "completions"])
async def test_over_http(gateway: Any, teller: Any, chat: Any, endpoint: Any) -> None:
    """In the order of the tokens, with the text that they are of; those without text come with the end. OpenAI's types
    take it, and nobody gets it unasked."""
    is_chat, path = endpoint.startswith("chat"), f"/v1/{endpoint}"
    body = chat if is_chat else {"prompt": "Hi"}
    whole = (await gateway.http.post(path, json=body | ASKED)).json()
    (ChatCompletion if is_chat else Completion).model_validate(whole, strict=True)
    assert whole["choices"][0]["token_origins"] == [FIRST, DRAFTED, OWN, LAST]
    _, events = await stream(gateway, path, body | ASKED | {"stream": True})
    chunks = [json.loads(each) for each in events[:-1]]
    for chunk in chunks if is_chat else ():
        ChatCompletionChunk.model_validate(chunk, strict=True)
    told = [each["choices"][0].get("token_origins") for each in chunks]
    assert [each for each in told if each] == [[FIRST], [DRAFTED, OWN], [LAST]]
    plain = (await gateway.http.post(path, json=body)).json()
    assert "token_origins" not in str(plain) and [each.return_token_origins for each in teller.asked][-1] is False


async def test_on_the_token_socket(gateway: Any, teller: Any, chat: Any) -> None:
    """With each delta."""
    async with connect(f"{gateway.ws_url}/v1/stream", proxy=None) as socket:
        await socket.send(json.dumps(chat | ASKED))
        messages: list[Any] = [{"type": ""}]
        while messages[-1]["type"] != "done":
            messages.append(json.loads(await asyncio.wait_for(socket.recv(), 60)))
    told = [each["token_origins"] for each in messages if each["type"] == "delta"]
    assert told == [[FIRST], [DRAFTED], [OWN], [LAST]]


async def test_an_agent_that_does_not_say(gateway: Any, agent: Any, chat: Any) -> None:
    """There are none."""
    whole = (await gateway.http.post("/v1/chat/completions", json=chat | ASKED)).json()
    assert whole["choices"][0]["token_origins"] == []


@pytest.mark.parametrize("given", ["yes", 1, {}])
async def test_it_is_asked_with_true(gateway: Any, agent: Any, chat: Any, given: Any) -> None:
    """Anything else is an error that names the member."""
    refused = await gateway.http.post("/v1/chat/completions", json=chat | {"return_token_origins": given})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "return_token_origins"
