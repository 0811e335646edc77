"""Tools in chats: what reaches the device, what clients are told of calls and thoughts, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from gateway_streams import client, stream
from msgspec.structs import replace
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from websockets.asyncio.client import connect

from gateway.errors import RequestError
from gateway.openai_schema import MAX_CALLS
from gateway.parsing import parse_chat
from gateway.policy import models_served
from gateway.registry.registry import AgentRecord
from gateway.text_parsing import parse_text
from gateway.tools import MAX_TOOLS, MAX_TOOLS_BYTES
from wire.request_messages import Accepted, Calling, CallPiece, Delta, Done, Finished, ServedModel
from wire.text_messages import ChatTurn, Tool, ToolCall

MODEL = ServedModel("demo/model", 4096, 1_700_000_000, grammars=True, tools=True)
HELLO = [{"role": "user", "content": "Hi"}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}


def function(name: str = "weather", **members: Any) -> dict[str, Any]:
    """A tool as OpenAI has it."""
    return {"type": "function", "function": {"name": name, "description": "Says it.", "parameters": SCHEMA, **members}}


def named(name: str) -> dict[str, Any]:
    """A choice of one tool."""
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """A choice of some tools."""
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


def ask(**members: Any) -> Any:
    return parse_chat(json.dumps({"messages": HELLO, "tools": [function(), function("time")]} | members).encode())


def told(ask: Any) -> list[str]:
    """The tools that the model is told."""
    return [tool.name for tool in ask.terms.rendering.tools]


BOTH = ["weather", "time"]
CHOICES: list[tuple[dict[str, Any], list[str], Calling | None]] = [
    ({}, BOTH, Calling()),
    ({"tool_choice": "auto", "parallel_tool_calls": False}, BOTH, Calling(parallel=False)),
    ({"tool_choice": None, "parallel_tool_calls": None}, BOTH, Calling()),
    ({"tool_choice": "required"}, BOTH, Calling(forced=True)),
    ({"tool_choice": named("time")}, BOTH, Calling(forced=True, name="time", parallel=False)),
    ({"tool_choice": "none"}, [], None),
    ({"tool_choice": allowed("auto", "time")}, ["time"], Calling()),
    ({"tool_choice": allowed("required", "time", "weather")}, BOTH, Calling(forced=True)),
    ({"tool_choice": allowed("required", "time")}, BOTH, Calling(forced=True, name="time", parallel=False)),
    ({"tools": []}, [], None),
    ({"tools": None, "tool_choice": "auto"}, [], None),
]


@pytest.mark.parametrize(("members", "names", "calling"), CHOICES)
def test_choices_say_what_is_told_and_how_it_is_called(members: Any, names: list[str], calling: Calling | None) -> None:
    """As OpenAI has them; thoughts are told apart in every chat."""
    asked = ask(**members)
    assert (told(asked), asked.terms.calling, asked.terms.thoughts) == (names, calling, True)


def test_tools_reach_the_device_as_they_were_sent() -> None:
    """The schema letter for letter, and where errors are to point; one without parameters has none."""
    strict = function("a-b_1", strict=True, parameters={"b": 1, "a": [1.5, "é"]})
    asked = ask(tools=[strict, function("f", parameters=None, description=None)])
    at = "tools[{}].function.parameters"
    assert asked.terms.rendering.tools == [
        Tool("a-b_1", "Says it.", '{"b": 1, "a": [1.5, "\\u00e9"]}', True, at.format(0)),
        Tool("f", "", "", False, at.format(1)),
    ]
    assert asked.most_bytes(0) > ask(tools=None).most_bytes(0) + len("Says it.")


def test_calls_and_what_they_gave_are_turns() -> None:
    """Arguments as the client sends them back; thoughts are an assistant's."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "cold"}]},
        {"role": "function", "name": "old", "content": None},
        {"role": "user", "content": "So?", "reasoning_content": "x", "tool_call_id": "y", "tool_calls": []},
    ]
    assert ask(messages=messages).prompts[0] == [
        ChatTurn("user", "Hi"),
        ChatTurn("assistant", "", None, [ToolCall("call_1", "weather", '{"city":"Oslo"}')], "", "Hm."),
        ChatTurn("tool", "cold", tool_call_id="call_1"),
        ChatTurn("function", "", "old"),
        ChatTurn("user", "So?"),
    ]
    body = json.dumps({"messages": messages, "tools": [function()]}).encode()
    for endpoint in ("tokenize", "input_tokens"):
        assert [tool.name for tool in parse_text(endpoint, body).terms.rendering.tools] == ["weather"]


def calls(count: int, messages: int = 1) -> list[Any]:
    """Messages with so many calls."""
    call = {"id": "x", "function": {"name": "f", "arguments": "{}"}}
    return [*HELLO, *([{"role": "assistant", "content": "", "tool_calls": [call] * count}] * messages)]


NAME, AT = "tools[0].function.name", "tools[0].function.parameters"
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no list": ({"tools": {}}, "tools"),
    "another kind": ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    "custom": ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
    "no kind": ({"tools": [{"function": {"name": "x"}}]}, "tools[0].type"),
    "no function": ({"tools": [{"type": "function"}]}, "tools[0].function"),
    "no name": ({"tools": [{"type": "function", "function": {}}]}, NAME),
    "empty": ({"tools": [function("")]}, NAME),
    "long": ({"tools": [function("x" * 65)]}, NAME),
    "quotes": ({"tools": [function('a", "arguments": {}}')]}, NAME),
    "line end": ({"tools": [function("a\n")]}, NAME),
    "a tag": ({"tools": [function("<|im_end|>")]}, NAME),
    "accents": ({"tools": [function("é")]}, NAME),
    "twice": ({"tools": [function(), function()]}, "tools[1].function.name"),
    "too many": ({"tools": [function(f"f{at}") for at in range(MAX_TOOLS + 1)]}, "tools"),
    "too large": ({"tools": [function(description="x" * MAX_TOOLS_BYTES)]}, "tools"),
    "a large schema": ({"tools": [function(parameters={"enum": ["x" * 70_000]})]}, AT),
    "a deep schema": ({"tools": [function(parameters=json.loads('{"a":' * 70 + "1" + "}" * 70))]}, AT),
    "no schema": ({"tools": [function(parameters=[1])]}, AT),
    "true": ({"tools": [function(parameters=True)]}, AT),
    "no object": ({"tools": [function(parameters={"type": "string"})]}, AT),
    "strict": ({"tools": [function(strict="yes")]}, "tools[0].function.strict"),
    "a choice": ({"tool_choice": "any"}, "tool_choice"),
    "an unknown tool": ({"tool_choice": named("x" * 99)}, "tool_choice"),
    "a choice of nothing": ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
    "another choice": ({"tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice.type"),
    "an unknown one allowed": ({"tool_choice": allowed("auto", "weather", "x")}, "tool_choice"),
    "none allowed": ({"tool_choice": allowed("auto")}, "tool_choice"),
    "a long choice": ({"tool_choice": allowed("auto", *["time"] * (MAX_TOOLS_BYTES // 40))}, "tool_choice"),
    "a mode": ({"tool_choice": allowed("maybe", "time")}, "tool_choice.allowed_tools.mode"),
    "required of none": ({"tools": None, "tool_choice": "required"}, "tool_choice"),
    "named of none": ({"tools": [], "tool_choice": named("weather")}, "tool_choice"),
    "parallel": ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    "an old choice": ({"function_call": {"name": "weather"}}, "function_call"),
    "no call": (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]},
        "messages[0].tool_calls[0].function",
    ),
    "a call of another kind": (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "x", "type": "custom", "custom": {"name": "f"}}]}]},
        "messages[0].tool_calls[0].type",
    ),
    "no text": (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": {}}}]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    "many calls": ({"messages": calls(MAX_CALLS + 1)}, "messages[1].tool_calls"),
    "many together": ({"messages": calls(MAX_CALLS // 2 + 1, 2)}, "messages[2].tool_calls"),
    "a tool that gave nothing": ({"messages": [{"role": "tool", "content": None}]}, "messages[0].content"),
}  # fmt: skip


@pytest.mark.parametrize(("members", "param"), BAD.values(), ids=BAD.keys())
def test_bad_tools_are_named_before_any_work(members: dict[str, Any], param: str) -> None:
    """400 with the member at fault and a code; a client's long words are cut."""
    with pytest.raises(RequestError) as caught:
        ask(**members)
    error = caught.value
    assert (error.status, error.param, error.type) == (400, param, "invalid_request_error")
    assert error.code and len(error.message) < 300


async def call(agent: Any, asked: Any) -> None:
    """Thoughts, a word, and two calls whose arguments come in pieces."""
    agent.post(Accepted(asked.request, 5))
    for at in range(asked.n):
        agent.post(Delta(asked.request, at, "", 1, reasoning="Hm, "))
        agent.post(Delta(asked.request, at, "Well.", 2, reasoning="yes."))
        for piece in (
            *(CallPiece(0, "", "call_a", "weather"), CallPiece(0, '{"city"'), CallPiece(0, ':"Oslo"}')),
            *(CallPiece(1, "", "call_b", "time"), CallPiece(1, "{}")),
        ):
            agent.post(Delta(asked.request, at, "", 1, call=piece))
        agent.post(Finished(asked.request, at, "tool_calls"))
    agent.post(Done(asked.request, 5, 8 * asked.n))


CALLS = [("call_a", "weather", '{"city":"Oslo"}'), ("call_b", "time", "{}")]


async def test_openai_python_reads_calls(gateway: Any, connected: Any, chat: Any) -> None:
    """Whole, and as its stream gathers them, for each of several choices."""
    async with connected(gateway, call, models=(MODEL,)), client(gateway) as openai:
        asked: dict[str, Any] = chat | {"tools": [function(), function("time")], "n": 2}
        reply = await openai.chat.completions.create(**asked)
        async with openai.chat.completions.stream(**asked) as events:
            streamed = await events.get_final_completion()
        for found in (reply, streamed):
            for choice in found.choices:
                message: Any = choice.message
                made = [(each.id, each.function.name, each.function.arguments) for each in message.tool_calls]
                assert (made, choice.finish_reason, message.content) == (CALLS, "tool_calls", "Well.")
                assert message.model_extra["reasoning_content"] == "Hm, yes."


def first(index: int, id: str, name: str) -> dict[str, Any]:
    """What a call begins with."""
    return {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}


async def test_chunks_are_as_openai_has_them(gateway: Any, connected: Any, chat: Any) -> None:
    """First index, id, type and name with no arguments, then pieces by index; nothing that is not new."""
    async with connected(gateway, call, models=(MODEL,)):
        _, events = await stream(gateway, "/v1/chat/completions", chat | {"tools": [function()], "stream": True})
    chunks = [json.loads(event) for event in events[:-1]]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm, "},
        {"reasoning_content": "yes.", "content": "Well."},
        {"tool_calls": [first(0, "call_a", "weather")]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ':"Oslo"}'}}]},
        {"tool_calls": [first(1, "call_b", "time")]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 8 + ["tool_calls"]


async def test_an_answer_of_calls_alone_has_no_content(gateway: Any, connected: Any, chat: Any) -> None:
    """Null, as at OpenAI; one that says nothing has an empty text, and no members that are not OpenAI's."""

    async def only(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 5))
        agent.post(Delta(asked.request, 0, "", 1, call=CallPiece(0, "{}", "call_a", "time")))
        agent.post(Finished(asked.request, 0, "tool_calls"))
        agent.post(Done(asked.request, 5, 1))

    async with connected(gateway, only, models=(MODEL,)):
        reply = (await gateway.http.post("/v1/chat/completions", json=chat | {"tools": [function()]})).json()
        ChatCompletion.model_validate(reply, strict=True)
    made = {"id": "call_a", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [made]}
    assert reply["choices"][0]["message"] == message
    async with connected(gateway, models=(MODEL,)):
        reply = (await gateway.http.post("/v1/chat/completions", json=chat)).json()
    assert set(reply["choices"][0]["message"]) == {"role", "content", "refusal"}


async def test_the_token_socket_tells_them_too(gateway: Any, connected: Any, chat: Any) -> None:
    """In its deltas, as chunks have them."""
    said: list[Any] = []
    async with (
        connected(gateway, call, models=(MODEL,)),
        connect(f"{gateway.ws_url}/stream", proxy=None, compression=None) as socket,
    ):
        await socket.send(json.dumps(chat | {"tools": [function()]}))
        while not said or said[-1]["type"] not in ("done", "error"):
            said.append(json.loads(await asyncio.wait_for(socket.recv(), 30)))
    deltas = [each for each in said if each["type"] == "delta"]
    assert [each.get("reasoning_content") for each in deltas] == ["Hm, ", "yes.", *[None] * 5]
    assert deltas[-1]["tool_calls"] == [{"index": 1, "function": {"arguments": "{}"}}]
    assert next(each["finish_reason"] for each in said if each["type"] == "finished") == "tool_calls"


async def test_who_cannot_call_tools_says_so(gateway: Any, connected: Any, chat: Any) -> None:
    """Any of the devices might get the request; those that do not say that they can would not notice the tools."""
    deaf, mute = replace(MODEL, tools=False), replace(MODEL, grammars=False)
    agents = [AgentRecord(str(at), "a", (model,), 1) for at, model in enumerate((MODEL, deaf))]
    assert [model.tools for model in models_served(agents)] == [False]
    tools = {"tools": [function()]}
    for model, more, param in ((deaf, tools, "tools"), (mute, tools | {"tool_choice": "required"}, "tool_choice")):
        async with connected(gateway, models=(model,)):
            reply = await gateway.http.post("/v1/chat/completions", json=chat | more)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
            reply = await gateway.http.post("/v1/chat/completions", json=chat | tools | {"tool_choice": "none"})
            assert reply.status_code == 200
    async with connected(gateway, models=(deaf,)):
        reply = await gateway.http.post("/v1/chat/completions/input_tokens", json=chat | tools)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools")
