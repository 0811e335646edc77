"""/v1/messages: objects, events and errors as Anthropic has them, member by member, and what reaches the device."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents_here import Served
from checkpoints import DEMO

from gateway.config import GatewayConfig
from wire.errors import Code
from wire.message import Failed
from wire.request_messages import Accepted, Delta, Done, Finished
from wire.text_messages import ChatTurn, Rendering

ASK: dict[str, Any] = {
    "model": "demo/model",
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "Hi"}],
}
USAGE = {"input_tokens": 5, "output_tokens": 4, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}


async def post(gateway: Any, body: Any, path: str = "/v1/messages", **headers: str) -> Any:
    return await gateway.http.post(path, json=body, headers=headers)


async def events_of(gateway: Any, body: Any) -> list[Any]:
    """The events of a stream, each named by its type."""
    reply = await post(gateway, body | {"stream": True})
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/event-stream")
    blocks = [block.split("\n") for block in reply.text.split("\n\n") if block and not block.startswith(":")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name for name, _ in blocks] == [f"event: {event['type']}" for event in events]
    return events


async def test_a_message_has_exactly_anthropics_members(gateway: Any, agent: Any) -> None:
    """All of them, null where there is nothing to say; with and without /v1."""
    for path in ("/v1/messages", "/messages"):
        reply = await post(gateway, ASK, path)
        assert reply.json() == {
            "id": f"msg_{reply.headers['x-request-id']}",
            "type": "message",
            "role": "assistant",
            "model": "demo/model",
            "content": [{"type": "text", "text": "Hello world"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": USAGE,
        }


async def test_events_come_in_anthropics_order(gateway: Any, agent: Any) -> None:
    """The start has the message without content, the end why it ended and what it took."""
    start, block, ping, *deltas, stop, delta, last = await events_of(gateway, ASK)
    message = start["message"]
    assert start["type"] == "message_start" and message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "demo/model",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": USAGE | {"output_tokens": 0},
    }
    assert block == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert ping == {"type": "ping"}
    assert [each["delta"]["text"] for each in deltas] == ["Hel", "lo wor", "ld"]
    for each in deltas:
        assert each.pop("delta")["type"] == "text_delta"
        assert each == {"type": "content_block_delta", "index": 0}
    assert stop == {"type": "content_block_stop", "index": 0}
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    assert delta == {"type": "message_delta", "delta": ended, "usage": USAGE}
    assert last == {"type": "message_stop"}


async def test_a_message_that_says_nothing_or_fails(gateway: Any, connected: Any) -> None:
    """There is no block without text; a failure in a stream is an event in Anthropic's shape."""

    async def cut(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 5))
        agent.post(Finished(asked.request, 0, "length"))
        agent.post(Done(asked.request, 5, 0, 3))

    async def fail(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 5))
        agent.post(Delta(asked.request, 0, "Well", 1))
        agent.post(Failed(Code.INTERNAL, "lost it", asked.request))

    async with connected(gateway, cut):
        assert [each["type"] for each in await events_of(gateway, ASK)] == [
            "message_start",
            "message_delta",
            "message_stop",
        ]
        whole = (await post(gateway, ASK)).json()
        assert (whole["content"], whole["stop_reason"]) == ([], "max_tokens")
        assert (whole["usage"]["input_tokens"], whole["usage"]["cache_read_input_tokens"]) == (2, 3)
    async with connected(gateway, fail):
        last = (await events_of(gateway, ASK))[-1]
        assert last["type"] == "error"
        assert last["error"] == {"type": "api_error", "message": "lost it", "param": None, "code": "internal_error"}


async def test_what_is_asked_reaches_the_device(gateway: Any, agent: Any) -> None:
    """System, blocks, settings; a last message of the assistant is gone on with, thoughts are told."""
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    body = ASK | {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]},
            {"role": "assistant", "content": [thinking, {"type": "text", "text": "He"}]},
        ],
        "stop_sequences": ["x", "y"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "metadata": {"user_id": "me"},
        "thinking": {"type": "disabled"},
    }
    assert (await post(gateway, body)).status_code == 200
    assert (await post(gateway, ASK | {"system": "S"})).status_code == 200
    asked, plain = agent.asked
    turns = [ChatTurn("system", "Be brief."), ChatTurn("user", "Hi\nyou"), ChatTurn("assistant", "He", reasoning="Hm.")]
    assert asked.prompt == turns
    assert (asked.max_tokens, asked.stop, asked.n) == (16, ["x", "y"], 1)
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 3)
    assert asked.rendering == Rendering(add_generation_prompt=False, continue_final_message=True)
    assert plain.prompt[0] == ChatTurn("system", "S") and plain.rendering == Rendering()


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"max_tokens": None}, "max_tokens", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "invalid_type"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "invalid_type"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]", None),
        ({"system": [{"type": "text"}]}, "system[0].text", "invalid_value"),
        ({"system": [{"type": "image"}]}, "system[0]", None),
        ({"stop_sequences": "x" * 300}, "stop_sequences", "invalid_value"),
        ({"top_p": 2}, "top_p", "invalid_value"),
        ({"mcp_servers": [{}]}, "mcp_servers", None),
        ({"container": "c"}, "container", None),
        ({"model": "other"}, "model", "model_not_found"),
    ],
)  # fmt: skip
async def test_refusals_are_anthropics(
    gateway: Any, agent: Any, more: dict[str, Any], param: str, code: str | None
) -> None:
    """In Anthropic's shape, with the member and code that OpenAI's errors have; nothing reaches a device."""
    reply = await post(gateway, ASK | more)
    kind = "not_found_error" if reply.status_code == 404 else "invalid_request_error"
    told = reply.json()
    assert set(told) == {"type", "error", "request_id"} and told["type"] == "error"
    assert told["request_id"] == reply.headers["x-request-id"]
    assert (told["error"]["type"], told["error"]["param"]) == (kind, param) and told["error"]["message"]
    assert told["error"]["code"] == (code or "unsupported_value")
    assert not agent.asked


async def test_a_key_is_shown_as_anthropics_clients_do(serving: Any, connected: Any) -> None:
    """In x-api-key or as a bearer: the same tenant. Errors of any kind keep Anthropic's shape."""
    async with serving(GatewayConfig(api_keys="one")) as gateway, connected(gateway) as agent:
        assert (await post(gateway, ASK, **{"x-api-key": "one"})).status_code == 200
        assert (await post(gateway, ASK, authorization="Bearer one")).status_code == 200
        assert agent.asked[0].tenant == agent.asked[1].tenant != ""
        for headers in ({"x-api-key": "two"}, {}):
            refused = await post(gateway, ASK, **headers)
            assert refused.status_code == 401
            assert refused.json()["error"]["type"] == "authentication_error"
        wrong = await gateway.http.get("/v1/messages", headers={"x-api-key": "one"})
        assert wrong.status_code == 405 and wrong.json()["type"] == "error"
        other = await gateway.http.get("/v1/chat/completions", headers={"x-api-key": "one"})
        assert set(other.json()) == {"error"}


async def test_a_device_says_which_sequence_ended_it(served: Served) -> None:
    """Its text ends before it; without it the answer goes on as a chat's does. Tokens are counted as they are."""
    body = ASK | {"model": "m", "temperature": 0, "max_tokens": 20}
    async with served(DEMO) as http:
        chat = (await http.post("/v1/chat/completions", json=body)).json()
        text = chat["choices"][0]["message"]["content"]
        whole = (await http.post("/v1/messages", json=body)).json()
        assert whole["content"] == [{"type": "text", "text": text}] and whole["stop_sequence"] is None
        stop = text[4:7]
        stopped = (await http.post("/v1/messages", json=body | {"stop_sequences": ["\0", stop]})).json()
        assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", stop)
        assert stopped["content"][0]["text"] == text[: text.index(stop)]
        del body["max_tokens"]
        counted = (await http.post("/v1/messages/count_tokens", json=body)).json()
        assert counted == {"input_tokens": chat["usage"]["prompt_tokens"]}
