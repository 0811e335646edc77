"""What requests say beyond OpenAI's members reaches the agent, over HTTP and the token websocket alike."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from gateway_streams import stream
from msgspec.structs import asdict
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from websockets.asyncio.client import connect

from gateway import answer as gateway_answer
from service.version import VERSION
from wire.request_messages import Accepted, Delta, Done, Finished, Rendering, ServedModel

FIELDS: dict[str, Any] = {
    "min_tokens": 3,
    "ignore_eos": True,
    "stop_token_ids": [7, 9],
    "include_stop_str_in_output": True,
    "bad_words": ["fox", "文"],
    "allowed_token_ids": [1, 2, 3],
    "cache_salt": "mine",
    "return_token_ids": True,
}
CHAT_FIELDS: dict[str, Any] = {
    "add_generation_prompt": False,
    "continue_final_message": True,
    "chat_template_kwargs": {"enable_thinking": False},
}
ENDPOINTS = [("/v1/chat/completions", CHAT_FIELDS), ("/completions", {})]
PROMPTS = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "prompt": [[5, 6], [7]]}


async def told(agent: Any, asked: Any) -> None:
    """Five tokens for each prompt, their ids told where that is asked."""
    agent.post(Accepted(asked.request, 2, [90, 91] if asked.return_token_ids else None))
    for text, ids in (("", [1]), ("Hel", [2, 3]), ("lo", [4]), ("", [5])):
        agent.post(Delta(asked.request, 0, text, len(ids), None, ids if asked.return_token_ids else None))
    agent.post(Finished(asked.request, 0, "stop"))
    agent.post(Done(asked.request, 2, 5))


async def test_token_ids_are_told_as_vllm_tells_them(gateway: Any, connected: Any, chat: Any) -> None:
    """Of chats beside the choices, of completions in each; in streams once at the beginning, and then as they come,
    none lost though their text is empty. Where they are not asked for there is no such member."""
    asked = {"return_token_ids": True}
    async with connected(gateway, told):
        reply = (await gateway.http.post("/v1/chat/completions", json=chat | asked)).json()
        assert (reply["prompt_token_ids"], reply["choices"][0]["token_ids"]) == ([90, 91], [1, 2, 3, 4, 5])
        _, events = await stream(gateway, "/v1/chat/completions", chat | asked | {"stream": True})
        chunks = [json.loads(event) for event in events[:-1]]
        assert [each.get("prompt_token_ids") for each in chunks] == [[90, 91], None, None, None]
        assert [each["choices"][0]["token_ids"] for each in chunks] == [[], [1, 2, 3], [4], [5]]
        body = {"prompt": ["a", "b"]}
        choices = (await gateway.http.post("/v1/completions", json=body | asked)).json()["choices"]
        assert [each["prompt_token_ids"] for each in choices] == [[90, 91]] * 2
        assert [each["token_ids"] for each in choices] == [[1, 2, 3, 4, 5]] * 2
        _, events = await stream(gateway, "/v1/completions", {"prompt": "a", "stream": True} | asked)
        chunks = [json.loads(event)["choices"][0] for event in events[:-1]]
        assert [each.get("prompt_token_ids") for each in chunks] == [[90, 91], None, None]
        assert [each["token_ids"] for each in chunks] == [[1, 2, 3], [4], [5]]
        said = await said_on(gateway, chat | asked)
        assert said[0]["prompt_token_ids"] == [90, 91]
        assert [each["token_ids"] for each in said if each["type"] == "delta"] == [[1], [2, 3], [4], [5]]
        for plain in (
            (await gateway.http.post("/v1/chat/completions", json=chat)).text,
            str(await said_on(gateway, chat)),
        ):
            assert "token_ids" not in plain


async def test_prompts_with_too_many_ids_are_refused(
    gateway: Any, connected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each answer they would be too much to encode at once."""
    monkeypatch.setattr(gateway_answer, "MAX_WHOLE_IDS", 3)
    async with connected(gateway, told):
        reply = await gateway.http.post("/v1/completions", json={"prompt": ["a", "b"], "return_token_ids": True})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "return_token_ids")


async def said_on(gateway: Any, body: Any) -> list[Any]:
    """All that the token websocket says to a request."""
    async with connect(f"{gateway.ws_url}/stream", proxy=None, compression=None) as socket:
        await socket.send(json.dumps(body))
        said = [json.loads(await asyncio.wait_for(socket.recv(), 30))]
        while said[-1]["type"] not in ("done", "error"):
            said.append(json.loads(await asyncio.wait_for(socket.recv(), 30)))
    return said


def check_asked(agent: Any, chat: bool, parts: int) -> None:
    """Every field came to the agent, in each of the request's messages."""
    assert len(agent.asked) == parts
    for asked in agent.asked:
        told = asdict(asked)
        assert {name: told[name] for name in FIELDS} == FIELDS
        assert asked.rendering == (Rendering(**CHAT_FIELDS) if chat else Rendering())
    agent.asked.clear()


@pytest.mark.parametrize(("path", "more"), ENDPOINTS)
async def test_fields_reach_the_agent_and_replies_keep_the_schema(
    gateway: Any, connected: Any, path: Any, more: Any
) -> None:
    """Whole, streamed and on the socket; the fingerprint of what answers is in every object and no null ever is."""
    chat, model = "chat" in path, ServedModel("demo/model", 4096, 1, fingerprint="fp_1a2b")
    body = FIELDS | more | ({"messages": PROMPTS["messages"]} if chat else {"prompt": PROMPTS["prompt"]})
    parts = 1 if chat else 2
    async with connected(gateway, models=(model,)) as agent:
        reply = (await gateway.http.post(path, json=body)).json()
        (ChatCompletion if chat else Completion).model_validate(reply, strict=True)
        assert reply["system_fingerprint"] == "fp_1a2b"
        check_asked(agent, chat, parts)
        _, events = await stream(gateway, path, body | {"stream": True})
        for event in map(json.loads, events[:-1]):
            if chat:  # The SDK has one type for completions and their chunks, whose reason to finish is never null.
                ChatCompletionChunk.model_validate(event, strict=True)
            assert event["system_fingerprint"] == "fp_1a2b"
        check_asked(agent, chat, parts)
        said = await said_on(gateway, body)
        assert (said[0]["system_fingerprint"], said[-1]["type"]) == ("fp_1a2b", "done")
        check_asked(agent, chat, parts)


@pytest.mark.parametrize(
    ("member", "value", "param"),
    [
        ("min_tokens", 10**12, "min_tokens"),
        ("bad_words", [""], "bad_words[0]"),
        ("allowed_token_ids", [], "allowed_token_ids"),
        ("cache_salt", "", "cache_salt"),
        ("return_token_ids", 1, "return_token_ids"),
        ("priority", "high", "priority"),
        ("priority", 2**31, "priority"),
        ("priority", 0.5, "priority"),
        ("continue_final_message", 3, "continue_final_message"),
        ("chat_template_kwargs", {"a-b": 1}, "chat_template_kwargs"),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
         "messages[0].content[0]"),
    ],
)  # fmt: skip
async def test_bad_values_are_typed_and_the_socket_goes_on(
    gateway: Any, agent: Any, chat: Any, member: str, value: Any, param: str
) -> None:
    """400 with the member, over HTTP and on the socket; nothing reaches the agent."""
    bad = chat | {member: value}
    response = await gateway.http.post("/v1/chat/completions", json=bad)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    said = await said_on(gateway, bad)
    assert (said[-1]["type"], said[-1]["error"]["param"]) == ("error", param)
    assert not agent.asked


async def test_an_image_is_refused_by_name(gateway: Any, agent: Any, chat: Any) -> None:
    """The type of the part is said, whatever it is; a long one is cut."""
    for kind in ("image_url", "input_audio", "x" * 500):
        messages = [{"role": "user", "content": [{"type": kind}]}]
        error = (await gateway.http.post("/v1/chat/completions", json=chat | {"messages": messages})).json()["error"]
        assert f"'{kind[:40]}'" in error["message"] and error["code"] == "unsupported_value"


async def test_the_version_is_told(gateway: Any) -> None:
    """As vLLM tells it."""
    response = await gateway.http.get("/version")
    assert (response.status_code, response.json()) == (200, {"version": VERSION})
