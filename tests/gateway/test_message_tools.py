"""Tools and thoughts in /v1/messages: blocks in, blocks and events out, member by member as Anthropic has them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import RequestError
from gateway.messages.message_parsing import parse_count, parse_message
from gateway.tools import MAX_TOOLS_BYTES
from wire.request_messages import Accepted, Calling, CallPiece, Delta, Done, Finished, ServedModel
from wire.text_messages import ChatTurn, Tool, ToolCall

MODEL = ServedModel("demo/model", 4096, 1_700_000_000, grammars=True, tools=True)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: dict[str, Any] = {"name": "weather", "description": "Says it.", "input_schema": SCHEMA}
TIME: dict[str, Any] = {"type": "custom", "name": "time", "input_schema": {"type": "object"}}
ASK: dict[str, Any] = {
    "model": "demo/model",
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "Hi"}],
    "tools": [TOOL, TIME],
}


def parsed(**members: Any) -> Any:
    return parse_message(json.dumps(ASK | members).encode(), "")


async def call(agent: Any, asked: Any) -> None:
    """Thoughts, a word, and two calls."""
    agent.post(Accepted(asked.request, 5))
    agent.post(Delta(asked.request, 0, "", 1, reasoning="Hm."))
    agent.post(Delta(asked.request, 0, "Well.", 1))
    for piece in (
        *(CallPiece(0, "", "call_a", "weather"), CallPiece(0, '{"city"'), CallPiece(0, ':"Oslo"}')),
        CallPiece(1, "{}", "call_b", "time"),
    ):
        agent.post(Delta(asked.request, 0, "", 1, call=piece))
    agent.post(Finished(asked.request, 0, "tool_calls"))
    agent.post(Done(asked.request, 5, 4))


CONTENT: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Hm.", "signature": ""},
    {"type": "text", "text": "Well."},
    {"type": "tool_use", "id": "call_a", "name": "weather", "input": {"city": "Oslo"}},
    {"type": "tool_use", "id": "call_b", "name": "time", "input": {}},
]


async def test_calls_and_thoughts_are_blocks(gateway: Any, connected: Any) -> None:
    """With an object as input, and the reason that Anthropic has for it."""
    async with connected(gateway, call, models=(MODEL,)):
        reply = (await gateway.http.post("/v1/messages", json=ASK)).json()
    assert (reply["content"], reply["stop_reason"], reply["stop_sequence"]) == (CONTENT, "tool_use", None)


async def test_events_come_in_anthropics_order(gateway: Any, connected: Any) -> None:
    """Each block begins empty, comes in pieces, and ends before the next."""
    async with connected(gateway, call, models=(MODEL,)):
        reply = await gateway.http.post("/v1/messages", json=ASK | {"stream": True})
    events = [json.loads(block.partition("data: ")[2]) for block in reply.text.split("\n\n") if "data: " in block]
    empty: list[dict[str, Any]] = [{"thinking": ""}, {"text": ""}, {"input": {}}, {"input": {}}]

    def start(at: int) -> dict[str, Any]:
        return {"type": "content_block_start", "index": at, "content_block": CONTENT[at] | empty[at]}

    def more(at: int, kind: str, **piece: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": at, "delta": {"type": kind} | piece}

    def stop(at: int) -> dict[str, Any]:
        return {"type": "content_block_stop", "index": at}

    assert events[1:-2] == [
        *(start(0), {"type": "ping"}, more(0, "thinking_delta", thinking="Hm."), stop(0)),
        *(start(1), more(1, "text_delta", text="Well."), stop(1)),
        *(start(2), more(2, "input_json_delta", partial_json='{"city"')),
        *(more(2, "input_json_delta", partial_json=':"Oslo"}'), stop(2)),
        *(start(3), more(3, "input_json_delta", partial_json="{}"), stop(3)),
    ]
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


async def test_a_call_that_is_cut_off_has_no_input(gateway: Any, connected: Any) -> None:
    """Its JSON is none yet; why it ended is said."""

    async def cut(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 5))
        agent.post(Delta(asked.request, 0, "", 1, call=CallPiece(0, '{"ci', "call_a", "weather")))
        agent.post(Finished(asked.request, 0, "length"))
        agent.post(Done(asked.request, 5, 1))

    async with connected(gateway, cut, models=(MODEL,)):
        reply = (await gateway.http.post("/v1/messages", json=ASK)).json()
    assert reply["content"] == [CONTENT[2] | {"input": {}}] and reply["stop_reason"] == "max_tokens"


async def test_a_call_that_is_no_json_is_text(gateway: Any, connected: Any) -> None:
    """The model has ended it so: a client that ran the tool with nothing would not know; other calls stay."""

    async def wrong(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 5))
        agent.post(Delta(asked.request, 0, "", 1, call=CallPiece(0, '{"city": 1,}', "call_a", "weather")))
        if len(asked.prompt) > 1:
            agent.post(Delta(asked.request, 0, "", 1, call=CallPiece(1, "", "call_b", "time")))
        agent.post(Finished(asked.request, 0, "tool_calls"))
        agent.post(Done(asked.request, 5, 1))

    text = {"type": "text", "text": '{"city": 1,}'}
    more = [*ASK["messages"], {"role": "assistant", "content": "Well."}, {"role": "user", "content": "So?"}]
    async with connected(gateway, wrong, models=(MODEL,)):
        alone = (await gateway.http.post("/v1/messages", json=ASK)).json()
        beside = (await gateway.http.post("/v1/messages", json=ASK | {"messages": more})).json()
    assert alone["content"] == [text] and alone["stop_reason"] == "end_turn"
    assert beside["content"] == [text, CONTENT[3]] and beside["stop_reason"] == "tool_use"


def test_blocks_are_turns() -> None:
    """What tools gave before what else a user says; a call's input letter for letter."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [*CONTENT[:3], {"type": "redacted_thinking", "data": "x"}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "So?"},
                {"type": "tool_result", "tool_use_id": "call_a", "content": [{"type": "text", "text": "cold"}]},
                {"type": "tool_result", "tool_use_id": "call_b", "content": "noon", "is_error": True},
                {"type": "tool_result", "tool_use_id": "call_c"},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_d", "content": "x"}]},
    ]
    assert parsed(messages=messages).prompts[0] == [
        ChatTurn("user", "Hi"),
        ChatTurn("assistant", "Well.", None, [ToolCall("call_a", "weather", '{"city": "Oslo"}')], "", "Hm."),
        ChatTurn("tool", "cold", tool_call_id="call_a"),
        ChatTurn("tool", "noon", tool_call_id="call_b"),
        ChatTurn("tool", "", tool_call_id="call_c"),
        ChatTurn("user", "So?"),
        ChatTurn("tool", "x", tool_call_id="call_d"),
    ]


def test_choices_reach_the_device() -> None:
    """By Anthropic's words for them; counting tokens counts tools too."""
    for choice, told, calling in (
        (None, 2, Calling()),
        ({"type": "auto", "disable_parallel_tool_use": True}, 2, Calling(parallel=False)),
        ({"type": "any"}, 2, Calling(forced=True)),
        ({"type": "tool", "name": "time"}, 2, Calling(forced=True, name="time", parallel=False)),
        ({"type": "none"}, 0, None),
    ):
        terms = parsed(tool_choice=choice).terms
        assert (len(terms.rendering.tools), terms.calling, terms.thoughts) == (told, calling, True)
    tools = [
        Tool("weather", "Says it.", json.dumps(SCHEMA), False, "tools[0].input_schema"),
        Tool("time", "", '{"type": "object"}', False, "tools[1].input_schema"),
    ]
    assert parsed().terms.rendering.tools == tools
    assert parse_count(json.dumps(ASK).encode(), "").terms.rendering.tools == tools


USE, RESULT = {"type": "tool_use", "id": "a", "name": "f", "input": {}}, {"type": "tool_result", "tool_use_id": "a"}


def said(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    """A conversation of one message."""
    return {"messages": [{"role": role, "content": list(blocks)}]}


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
        ({"tools": [{"input_schema": SCHEMA}]}, "tools[0].name"),
        ({"tools": [TOOL | {"input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "auto", "x": "x" * MAX_TOOLS_BYTES}}, "tool_choice"),
        ({"tools": [], "tool_choice": {"type": "any"}}, "tool_choice"),
        (said("assistant", USE | {"id": None}), "messages[0].content[0].id"),
        (said("assistant", USE | {"name": None}), "messages[0].content[0].name"),
        (said("assistant", USE | {"input": "x"}), "messages[0].content[0].input"),
        (said("assistant", {"type": "tool_use", "id": "a", "name": "f"}), "messages[0].content[0].input"),
        (said("user", USE), "messages[0].content[0]"),
        (said("assistant", RESULT), "messages[0].content[0]"),
        (said("user", RESULT | {"tool_use_id": None}), "messages[0].content[0].tool_use_id"),
        (said("user", RESULT | {"content": [{"type": "image"}]}), "messages[0].content[0].content[0]"),
        (said("user", *[RESULT | {"content": [{"type": "text", "text": ""}] * 1200}] * 4),
         "messages[0].content[3].content"),
        ({"system": [USE]}, "system[0]"),
    ],
)  # fmt: skip
def test_bad_tools_and_blocks_are_named(members: dict[str, Any], param: str) -> None:
    """400 with the member at fault."""
    with pytest.raises(RequestError) as caught:
        parsed(**members)
    assert (caught.value.status, caught.value.param) == (400, param) and caught.value.code
