"""Tools and thoughts in /v1/responses: items in, items and events out, in OpenAI's types and order."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from gateway_streams import client
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.errors import RequestError
from gateway.responses.repeated import MAX_FORMAT_BYTES, MAX_REPEATED_DEPTH
from gateway.responses.response_parsing import decoded_response, response_ask
from gateway.tools import MAX_TOOLS_BYTES
from wire.request_messages import (
    Accepted,
    Alternative,
    Calling,
    CallPiece,
    Delta,
    Done,
    Finished,
    ServedModel,
    TokenLogprob,
)
from wire.text_messages import ChatTurn, Tool, ToolCall

MODEL = ServedModel("demo/model", 4096, 1_700_000_000, grammars=True, tools=True)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: dict[str, Any] = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
ASK: dict[str, Any] = {"model": "demo/model", "input": "Hi", "tools": [TOOL]}


def parsed(**members: Any) -> Any:
    body = json.dumps(ASK | members).encode()
    return response_ask(decoded_response(body), [], "resp_" + "0" * 32, 0, "")


async def call(agent: Any, asked: Any) -> None:
    """Thoughts, a word, and two calls."""
    agent.post(Accepted(asked.request, 5))
    agent.post(Delta(asked.request, 0, "", 1, reasoning="Hm."))
    agent.post(Delta(asked.request, 0, "Well.", 1))
    agent.post(Delta(asked.request, 0, "", 1, call=CallPiece(0, "", "call_a", "weather")))
    agent.post(Delta(asked.request, 0, "", 1, call=CallPiece(0, '{"city"')))
    agent.post(Delta(asked.request, 0, "", 1, call=CallPiece(0, ':"Oslo"}')))
    agent.post(Delta(asked.request, 0, "", 1, call=CallPiece(1, "{}", "call_b", "time")))
    agent.post(Finished(asked.request, 0, "tool_calls"))
    agent.post(Done(asked.request, 5, 5))


ORDER = [
    *("created", "in_progress"),
    *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
    *("content_part.done", "output_item.done"),
    *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
    *("content_part.done", "output_item.done"),
    *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
    *("function_call_arguments.done", "output_item.done"),
    *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
    "completed",
]


async def test_tokens_of_a_call_are_no_message(gateway: Any, connected: Any) -> None:
    """An answer that begins with a call has none before it, where log-probabilities are asked for too."""

    async def only_a_call(agent: Any, asked: Any) -> None:
        likely = [TokenLogprob(Alternative("{", -0.5, b"{"), [])]
        agent.post(Accepted(asked.request, 5))
        agent.post(Delta(asked.request, 0, "", 1, likely, call=CallPiece(0, "", "call_a", "weather")))
        agent.post(Delta(asked.request, 0, "", 1, likely, call=CallPiece(0, '{"city":"Oslo"}')))
        agent.post(Finished(asked.request, 0, "tool_calls"))
        agent.post(Done(asked.request, 5, 2))

    async with connected(gateway, only_a_call, models=(MODEL,)):
        asked = ASK | {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        whole = (await gateway.http.post("/v1/responses", json=asked)).json()
        assert [each["type"] for each in whole["output"]] == ["function_call"]
        streamed = (await gateway.http.post("/v1/responses", json=asked | {"stream": True})).text
        assert "function_call" in streamed and '"type":"message"' not in streamed


async def test_calls_and_thoughts_are_items_in_openais_order(gateway: Any, connected: Any) -> None:
    """Each event of OpenAI's type and with its item's place; the last one has what a whole response has."""
    async with connected(gateway, call, models=(MODEL,)):
        reply = await gateway.http.post("/v1/responses", json=ASK | {"stream": True})
        whole = (await gateway.http.post("/v1/responses", json=ASK)).json()
    events = [json.loads(block.partition("data: ")[2]) for block in reply.text.split("\n\n") if "data: " in block]
    assert [event["type"] for event in events] == [f"response.{each}" for each in ORDER]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        EVENT.validate_python(event)
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1, 2, 3]
    assert len({event["item"]["id"] for event in added}) == 4
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == done[event["output_index"]]["id"]
    thought, message, *calls = whole["output"]
    assert (thought["type"], thought["content"]) == ("reasoning", [{"type": "reasoning_text", "text": "Hm."}])
    assert message["content"][0]["text"] == "Well."
    made = [(each["type"], each["call_id"], each["name"], each["arguments"], each["status"]) for each in calls]
    assert made == [
        ("function_call", "call_a", "weather", '{"city":"Oslo"}', "completed"),
        ("function_call", "call_b", "time", "{}", "completed"),
    ]
    Response.model_validate(whole)
    assert whole["tools"] == [TOOL | {"description": None}] and whole["tool_choice"] == "auto"
    assert whole["parallel_tool_calls"] is True and whole["status"] == "completed"


async def test_a_call_that_is_cut_off_is_incomplete(gateway: Any, connected: Any) -> None:
    """The item and the response say so."""

    async def cut(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 5))
        agent.post(Delta(asked.request, 0, "", 1, call=CallPiece(0, '{"ci', "call_a", "weather")))
        agent.post(Finished(asked.request, 0, "length"))
        agent.post(Done(asked.request, 5, 1))

    async with connected(gateway, cut, models=(MODEL,)):
        whole = (await gateway.http.post("/v1/responses", json=ASK)).json()
    [made] = whole["output"]
    assert (made["arguments"], made["status"], whole["status"]) == ('{"ci', "incomplete", "incomplete")


async def test_openai_python_goes_on_with_what_a_tool_gave(gateway: Any, connected: Any) -> None:
    """By ``previous_response_id``, and with all items again: the model is told the same."""
    async with connected(gateway, call, models=(MODEL,)) as agent, client(gateway) as openai:
        asked: dict[str, Any] = ASK | {"tools": [TOOL]}
        first = await openai.responses.create(**asked)
        given = [
            {"type": "function_call_output", "call_id": "call_a", "output": "cold"},
            {"type": "function_call_output", "call_id": "call_b", "output": [{"type": "input_text", "text": "noon"}]},
        ]
        second = await openai.responses.create(**asked | {"input": given, "previous_response_id": first.id})
        again = [{"role": "user", "content": "Hi"}, *(item.model_dump(exclude_none=True) for item in first.output)]
        await openai.responses.create(**asked | {"input": [*again, *given]})
        calls = [ToolCall("call_a", "weather", '{"city":"Oslo"}'), ToolCall("call_b", "time", "{}")]
        wanted = [
            ChatTurn("user", "Hi"),
            ChatTurn("assistant", "Well.", None, calls, "", "Hm."),
            ChatTurn("tool", "cold", tool_call_id="call_a"),
            ChatTurn("tool", "noon", tool_call_id="call_b"),
        ]
        assert agent.asked[1].prompt == agent.asked[2].prompt == wanted
        listed = (await gateway.http.get(f"/v1/responses/{second.id}/input_items", params={"order": "asc"})).json()
        ResponseItemList.model_validate(listed)
        kinds = ["message", "reasoning", "message", "function_call", "function_call", *["function_call_output"] * 2]
        assert [item["type"] for item in listed["data"]] == kinds


def test_what_an_assistant_did_in_a_row_is_one_turn() -> None:
    """Another message, or thoughts behind what was said, begin another; reasoning without a text is read over."""
    items: list[dict[str, Any]] = [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "x"}],
            "encrypted_content": "x",
        },
        {"role": "assistant", "content": "One."},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"role": "assistant", "content": "Two."},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
    ]
    assert parsed(input=items).prompts[0] == [
        ChatTurn("assistant", "One.", None, [ToolCall("a", "f", "{}")]),
        ChatTurn("assistant", "Two."),
        ChatTurn("assistant", "", None, [ToolCall("b", "f", "{}")], "", "Hm."),
    ]


def test_choices_reach_the_device() -> None:
    """As OpenAI has them here: not wrapped up."""
    two = [TOOL, {"type": "function", "name": "time"}]
    named = {"type": "function", "name": "time"}
    some = {"type": "allowed_tools", "mode": "auto", "tools": [named]}
    for choice, told, calling in (
        ("auto", 2, Calling()),
        ("required", 2, Calling(forced=True)),
        (named, 2, Calling(forced=True, name="time", parallel=False)),
        (some, 1, Calling()),
        ("none", 0, None),
    ):
        terms = parsed(tools=two, tool_choice=choice).terms
        assert (len(terms.rendering.tools), terms.calling, terms.thoughts) == (told, calling, True)
    at = "tools[0].parameters"
    assert parsed().terms.rendering.tools == [Tool("weather", "", json.dumps(SCHEMA), True, at)]
    assert parsed(tool_choice=named, tools=two).response.tool_choice == named


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
        ({"tools": [TOOL | {"name": None}]}, "tools[0].name"),
        ({"tools": [TOOL | {"parameters": {"type": "array"}}]}, "tools[0].parameters"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "a"}]}, "input[0].name"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": {}}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "input[0].output"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image"}]}]},
         "input[0].output[0]"),
        ({"input": [{"type": "custom_tool_call", "call_id": "a"}]}, "input[0].type"),
        ({"input": [{"type": "tool_search_call", "arguments": {"query": "x"}}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"id": "msg_1"}]}, "input[0].type"),
    ],
)  # fmt: skip
def test_bad_tools_and_items_are_named(members: dict[str, Any], param: str) -> None:
    """400 with the member at fault."""
    with pytest.raises(RequestError) as caught:
        parsed(**members)
    assert (caught.value.status, caught.value.param) == (400, param) and caught.value.code


def within(size: int) -> list[Any]:
    """A list whose JSON has so many bytes, most of them objects."""
    return [{}] * ((size - 2) // len("{}, "))


def nested(levels: int) -> list[Any]:
    """So many lists, one within the other."""
    found: list[Any] = []
    for _ in range(levels - 1):
        found = [found]
    return found


FUNCTION = {"type": "function", "name": "weather"}
CARRIERS: dict[str, Any] = {
    "text.format": lambda more: {"text": {"format": {"type": "text", "x": more}}},
    "tools": lambda more: {"tools": [FUNCTION | {"x": more}]},
    "tool_choice": lambda more: {"tools": [FUNCTION], "tool_choice": FUNCTION | {"x": more}},
}


@pytest.mark.parametrize("param", CARRIERS)
def test_what_a_response_repeats_is_bounded(param: str) -> None:
    """Members that nobody knows too: it is kept as long as its request waits, and encoded where the stack is
    deeper than when it was read."""
    most = MAX_FORMAT_BYTES if param == "text.format" else MAX_TOOLS_BYTES
    for more, holds in (
        (within(most - 100), True),
        (within(most + 100), False),
        (nested(MAX_REPEATED_DEPTH - 2), True),
        (nested(MAX_REPEATED_DEPTH + 1), False),
    ):
        members = CARRIERS[param](more)
        if holds:
            response = msgspec.to_builtins(parsed(**members).response)
            [shown] = response["tools"] if param == "tools" else [response.get(param) or response["text"]["format"]]
            assert shown["x"] == more
        else:
            with pytest.raises(RequestError) as caught:
                parsed(**members)
            assert (caught.value.status, caught.value.param) == (400, param)
