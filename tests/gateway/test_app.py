"""The endpoints, through real sockets, as OpenAI's own client and as strict readers see them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from gateway_streams import client, stream
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from websockets.asyncio.client import connect

from gateway.app import create_app
from gateway.config import GatewayConfig
from wire.request_messages import Accepted, Done, Finished, ServedModel

CHAT_KEYS = {"id", "object", "created", "model", "choices", "usage"}

CHUNK_KEYS = {"id", "object", "created", "model", "choices"}


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_a_chat_completion_has_exactly_the_members_of_the_schema(
    gateway: Any, agent: Any, chat: Any, prefix: Any
) -> None:
    """Required members are there even when null, and nothing else is."""
    response = await gateway.http.post(f"{prefix}/chat/completions", json=chat)
    reply = response.json()
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert reply.keys() == CHAT_KEYS
    assert reply["object"] == "chat.completion"
    assert reply["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello world", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert reply["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    ChatCompletion.model_validate(reply, strict=True)


async def test_a_chat_stream_follows_every_rule(gateway: Any, agent: Any, chat: Any) -> None:
    """Role first, once per choice; no empty chunk in between; a last chunk with the reason; one id; [DONE]."""
    headers, events = await stream(gateway, "/v1/chat/completions", chat | {"stream": True, "n": 2})
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    for chunk in chunks:
        assert chunk.keys() == CHUNK_KEYS
        assert [choice.keys() for choice in chunk["choices"]] == [{"index", "delta", "logprobs", "finish_reason"}]
        ChatCompletionChunk.model_validate(chunk, strict=True)
    for index, reason in ((0, "stop"), (1, "length")):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert [each["delta"] for each in own[1:-1]] == [{"content": "Hel"}, {"content": "lo wor"}, {"content": "ld"}]
        assert own[-1]["delta"] == {}
        assert [each["finish_reason"] for each in own] == [None] * (len(own) - 1) + [reason]


async def test_include_usage_adds_null_to_every_chunk_and_one_last_chunk(gateway: Any, agent: Any, chat: Any) -> None:
    """Every earlier chunk has usage null; the extra one has no choices."""
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    for path, body in (("/v1/chat/completions", chat | usage), ("/v1/completions", {"prompt": "x"} | usage)):
        _, events = await stream(gateway, path, body)
        assert events.pop() == "[DONE]"
        chunks = [json.loads(event) for event in events]
        assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}


async def test_a_completion_has_exactly_the_members_of_the_schema(gateway: Any, agent: Any) -> None:
    """logprobs is there as null."""
    reply = (await gateway.http.post("/v1/completions", json={"prompt": "Once"})).json()
    assert reply.keys() == CHAT_KEYS
    assert reply["object"] == "text_completion"
    assert reply["choices"] == [{"text": "Hello world", "index": 0, "logprobs": None, "finish_reason": "stop"}]
    Completion.model_validate(reply, strict=True)
    assert agent.asked[0].max_tokens == 16


async def test_several_prompts_times_n_choices(gateway: Any, agent: Any) -> None:
    """Choices are numbered prompt by prompt, usage is the sum."""
    for stream_it in (False, True):
        agent.asked.clear()
        body = {"prompt": [[1, 2], [3], [4, 5, 6]], "n": 2, "max_tokens": 3, "stream": stream_it}
        if stream_it:
            _, events = await stream(gateway, "/v1/completions", body)
            texts: dict[int, str] = {}
            for event in events[:-1]:
                choice = json.loads(event)["choices"][0]
                texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        else:
            reply = (await gateway.http.post("/v1/completions", json=body)).json()
            texts = {choice["index"]: choice["text"] for choice in reply["choices"]}
            assert reply["usage"] == {"prompt_tokens": 15, "completion_tokens": 24, "total_tokens": 39}
        assert texts == dict.fromkeys(range(6), "Hello world")
        assert [asked.prompt_ids for asked in agent.asked] == [[1, 2], [3], [4, 5, 6]]


async def test_logprobs_of_a_chat(gateway: Any, agent: Any, chat: Any) -> None:
    """Strict shape; minus infinity becomes a number JSON has."""
    reply = (await gateway.http.post("/chat/completions", json=chat | {"logprobs": True, "top_logprobs": 2})).json()
    logprobs = reply["choices"][0]["logprobs"]
    assert logprobs.keys() == {"content", "refusal"}
    assert logprobs["refusal"] is None
    first = logprobs["content"][0]
    assert first == {
        "token": "Hel",
        "logprob": -0.25,
        "bytes": list(b"Hel"),
        "top_logprobs": [
            {"token": "Hel0", "logprob": -0.5, "bytes": list(b"Hel0")},
            {"token": "Hel1", "logprob": -9999.0, "bytes": list(b"Hel1")},
        ],
    }
    assert len(logprobs["content"]) == 4
    _, events = await stream(gateway, "/chat/completions", chat | {"logprobs": True, "stream": True})
    chunks = [json.loads(event)["choices"][0] for event in events[:-1]]
    tokens = [each["token"] for chunk in chunks if chunk["logprobs"] for each in chunk["logprobs"]["content"]]
    assert tokens == ["Hel", "lo wor", "?", "ld"]


async def test_logprobs_of_a_completion(gateway: Any, agent: Any) -> None:
    """Four parallel lists, offsets into the text."""
    body = {"prompt": "Say ", "logprobs": 1}
    choice = (await gateway.http.post("/v1/completions", json=body)).json()["choices"][0]
    assert choice["text"] == "Hello world"
    logprobs = choice["logprobs"]
    assert logprobs.keys() == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert {len(each) for each in logprobs.values()} == {4}
    assert logprobs["text_offset"] == [0, 3, 9, 9]
    assert logprobs["top_logprobs"][0] == {"Hel0": -0.5, "Hel": -0.25}


async def test_models(gateway: Any, connected: Any) -> None:
    """Every model once, by list and by id, slashes included."""
    other = ServedModel("other", 10, 7, tasks=["embed", "classify"])
    async with connected(gateway), connected(gateway, models=(other, ServedModel("demo/model", 5, 1))):
        listed = (await gateway.http.get("/v1/models")).json()
        assert listed == {
            "object": "list",
            "data": [
                {"id": "demo/model", "object": "model", "created": 1_700_000_000, "owned_by": "trilby",
                 "max_model_len": 5, "tasks": ["generate"]},
                {"id": "other", "object": "model", "created": 7, "owned_by": "trilby", "max_model_len": 10,
                 "tasks": ["embed", "classify"]},
            ],
        }  # fmt: skip
        for card in listed["data"]:
            Model.model_validate(card, strict=True)
            assert (await gateway.http.get(f"/v1/models/{card['id']}")).json() == card
        missing = await gateway.http.get("/models/none")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "model_not_found"
        async with client(gateway) as api:
            assert (await api.models.list()).data[0].id == "demo/model"


async def test_openai_python_reads_everything(gateway: Any, agent: Any, chat: Any) -> None:
    """Whole and streamed, chat and completion, and its errors."""
    api = client(gateway)
    whole = await api.chat.completions.create(**chat)
    assert whole.choices[0].message.content == "Hello world"
    streamed = await api.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in streamed]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello world"
    assert chunks[-1].usage and chunks[-1].usage.total_tokens == 9
    text = await api.completions.create(model="demo/model", prompt="Once", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in text]) == "Hello world"
    with pytest.raises(openai.NotFoundError) as missing:
        await api.chat.completions.create(**chat | {"model": "none"})
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await api.chat.completions.create(**chat, temperature=3)
    assert bad.value.param == "temperature"
    await api.close()


async def test_openai_python_without_asyncio(gateway: Any, agent: Any, chat: Any) -> None:
    """The synchronous client, from a thread."""

    def talk() -> str:
        with (
            openai.OpenAI(base_url=gateway.url + "/v1", api_key="none") as api,
            api.chat.completions.create(**chat, stream=True) as streamed,
        ):
            return "".join(chunk.choices[0].delta.content or "" for chunk in streamed)

    assert await asyncio.to_thread(talk) == "Hello world"


async def test_settings_reach_the_agent(gateway: Any, agent: Any, chat: Any) -> None:
    """Every sampling member, under its name on the wire."""
    body = chat | {
        "temperature": 0, "top_p": 0, "top_k": -1, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1,
        "repetition_penalty": 1.5, "logit_bias": {"7": -100}, "seed": -(2**63), "stop": "END", "stop_token_ids": [3],
        "ignore_eos": True, "max_tokens": 9, "max_completion_tokens": 8, "n": 2, "user": "someone", "unknown": [{}],
    }  # fmt: skip
    assert (await gateway.http.post("/v1/chat/completions", json=body)).status_code == 200
    asked = agent.asked[0]
    assert (asked.n, asked.max_tokens, asked.stop, asked.stop_token_ids, asked.ignore_eos) == (2, 8, ["END"], [3], True)
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0, 0, 0, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, -1, 1.5)
    assert (sampling.logit_bias, sampling.seed) == ({7: -100.0}, -(2**63))


async def test_the_first_model_answers_when_none_is_named(gateway: Any, agent: Any, chat: Any) -> None:
    """And the reply names it."""
    del chat["model"]
    assert (await gateway.http.post("/v1/chat/completions", json=chat)).json()["model"] == "demo/model"


def test_beyond_loopback_a_device_token_is_needed() -> None:
    """Refused before anything listens."""
    with pytest.raises(ValueError, match="device token"):
        create_app(GatewayConfig(host="0.0.0.0"))
    create_app(GatewayConfig(host="0.0.0.0", device_token="secret"))


async def test_tokens_left_from_an_earlier_turn_are_told(gateway: Any, connected: Any, chat: Any) -> None:
    """As OpenAI tells cached tokens, and not at all where there are none."""

    async def cached(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 20))
        agent.post(Finished(asked.request, 0, "stop"))
        agent.post(Done(asked.request, 20, 1, 16))

    async with connected(gateway, cached), client(gateway) as api:
        reply = await api.chat.completions.create(**chat)
        assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
        assert reply.usage.prompt_tokens_details.cached_tokens == 16


async def test_requests_say_whose_they_are(serving: Any, connected: Any, chat: Any) -> None:
    """One tenant for each key, on both kinds of connection, and never the key; none where no key is asked."""
    async with serving(GatewayConfig(api_keys="first-key,second-key")) as gateway, connected(gateway) as agent:
        for key in ("first-key", "first-key", "second-key"):
            headers = {"Authorization": f"Bearer {key}"}
            assert (await gateway.http.post("/v1/chat/completions", json=chat, headers=headers)).status_code == 200
        url = gateway.ws_url + "/v1/stream"
        async with connect(url, additional_headers={"Authorization": "Bearer first-key"}) as websocket:
            await websocket.send(json.dumps(chat))
            while json.loads(await websocket.recv())["type"] != "done":
                pass
        one, again, other, socket = [asked.tenant for asked in agent.asked]
        assert one == again == socket != other and len(one) == len(other) == 32
        assert all("key" not in repr(asked) for asked in agent.asked)
    async with serving(GatewayConfig()) as gateway, connected(gateway) as agent:
        await gateway.http.post("/v1/chat/completions", json=chat, headers={"Authorization": "Bearer first-key"})
        assert [asked.tenant for asked in agent.asked] == [""]
