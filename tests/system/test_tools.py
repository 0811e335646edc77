"""Tools as users call them: openai-python against real processes, in all APIs, drafted and not."""

from __future__ import annotations

import json
from typing import Any, Literal

import httpx
import openai
import pytest
from installation import Installation
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, Field

pytestmark = pytest.mark.system


class Weather(BaseModel):
    """Says how the weather will be."""

    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)


TURNS: Any = [{"role": "user", "content": "How is the weather in Rome?"}]
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time", "parameters": NOTHING, "strict": True}}
TOOLS: Any = [openai.pydantic_function_tool(Weather, name="weather"), TIME]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}


def client(installation: Installation) -> OpenAI:
    """The official client, pointed here."""
    return OpenAI(base_url=installation.base, api_key="none", max_retries=0)


def called(message: Any) -> list[tuple[str, Any]]:
    """The calls of a message, each obeying its schema."""
    made = [(each.function.name, json.loads(each.function.arguments)) for each in message.tool_calls]
    for name, arguments in made:
        assert arguments == {} if name == "time" else Weather.model_validate(arguments)
    assert message.content in (None, "") and all(each.id and each.type == "function" for each in message.tool_calls)
    return made


def test_forced_calls_are_made_whole_and_streamed_drafted_and_not(installation: Installation) -> None:
    """A named tool and any; read by the SDK's own helpers; greedy and sampled the same with each drafter."""
    with client(installation) as here:
        for choice, more in ((NAMED, {"temperature": 0}), ("required", {"temperature": 1.0, "seed": 4, "n": 2})):
            found = []
            for draft in ("none", "lookup", ""):
                asked: dict[str, Any] = {
                    "model": "trilby-demo",
                    "messages": TURNS,
                    "tools": TOOLS,
                    "tool_choice": choice,
                    "max_tokens": 300,
                    "extra_body": {"draft": draft},
                    **more,
                }
                whole = here.chat.completions.parse(**asked)
                with here.chat.completions.stream(**asked) as events:
                    kinds = {event.type for event in events}
                    streamed = events.get_final_completion()
                for reply in (whole, streamed):
                    assert {each.finish_reason for each in reply.choices} == {"tool_calls"}
                    found.append([called(each.message) for each in reply.choices])
                assert "tool_calls.function.arguments.delta" in kinds
                if choice is NAMED:
                    [call] = whole.choices[0].message.tool_calls or []
                    assert isinstance(call.function.parsed_arguments, Weather)
            assert all(each == found[0] for each in found)
            assert choice == "required" or found[0][0][0][0] == "weather"


def test_the_demo_model_calls_nothing_of_its_own_accord(installation: Installation) -> None:
    """With tools offered it answers as without them; what a tool gave is told to it, and what cannot be is refused."""
    with client(installation) as here:
        asked: dict[str, Any] = {"model": "trilby-demo", "messages": TURNS, "temperature": 0, "max_tokens": 24}
        plain, offered = (here.chat.completions.create(**asked, **more).choices[0] for more in ({}, {"tools": TOOLS}))
        assert offered == plain and offered.message.tool_calls is None
        call = here.chat.completions.create(**asked | {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 100})
        [made] = call.choices[0].message.tool_calls or []
        turns = [*TURNS, call.choices[0].message, {"role": "tool", "tool_call_id": made.id, "content": "It is warm."}]
        assert here.chat.completions.create(**asked | {"messages": turns, "tools": TOOLS}).choices[0].message.content
        broken = {
            "type": "function",
            "function": {"name": "x", "parameters": {"properties": {"a": {"type": "objekt"}}}},
        }
        with pytest.raises(BadRequestError) as caught:
            here.chat.completions.create(**asked | {"tools": [*TOOLS, broken], "tool_choice": "required"})
        assert caught.value.param == "tools[2].function.parameters.properties.a"


def test_responses_and_messages_call_too(installation: Installation) -> None:
    """The same call, as items and as blocks."""
    schema = Weather.model_json_schema()
    with client(installation) as here:
        tool: Any = {"type": "function", "name": "weather", "parameters": schema, "strict": True}
        asked: dict[str, Any] = {"model": "trilby-demo", "input": TURNS, "tools": [tool], "temperature": 0}
        reply = here.responses.create(**asked, tool_choice="required", parallel_tool_calls=False)
        [item] = reply.output
        assert item.type == "function_call" and reply.status == "completed"
        arguments = Weather.model_validate_json(item.arguments)
        given: Any = [{"type": "function_call_output", "call_id": item.call_id, "output": "It is warm."}]
        more: dict[str, Any] = {"input": given, "previous_response_id": reply.id, "max_output_tokens": 16}
        with here.responses.stream(**asked | more) as events:
            assert [event.type for event in events][-1] in ("response.completed", "response.incomplete")
            assert events.get_final_response().output_text
    body = {
        "model": "trilby-demo",
        "max_tokens": 100,
        "temperature": 0,
        "messages": TURNS,
        "tools": [{"name": "weather", "input_schema": schema}],
        "tool_choice": {"type": "tool", "name": "weather"},
    }
    message = httpx.post(f"{installation.base}/messages", json=body, timeout=60, trust_env=False).json()
    [block] = message["content"]
    assert (block["type"], message["stop_reason"]) == ("tool_use", "tool_use")
    assert Weather.model_validate(block["input"]) == arguments
