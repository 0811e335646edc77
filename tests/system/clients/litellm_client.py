"""litellm as its users have it: asked things of a server, it prints as JSON what it was told.

python litellm_client.py BASE KEY QUESTION
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # Else it is fetched as the module is imported.

import litellm

base, key, question = sys.argv[1:]
WAY: dict[str, Any] = {"model": "openai/trilby-demo", "api_base": base, "api_key": key, "num_retries": 0}
SCHEMA = {
    "type": "object",
    "properties": {"legs": {"type": "integer", "minimum": 2, "maximum": 4}},
    "required": ["legs"],
    "additionalProperties": False,
}

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Says how the weather will be.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Oslo", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
        },
    },
}


def turns(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def name_of(**asked: Any) -> str:
    """The error that a chat ends with."""
    try:
        litellm.completion(**{**WAY, "messages": turns("Hi"), **asked})
    except Exception as error:
        return type(error).__name__
    return ""


def made_in(message: Any) -> list[Any]:
    """The calls of a message."""
    return [[each.function.name, json.loads(each.function.arguments)] for each in message.tool_calls]


def call() -> dict[str, Any]:
    """A call that is asked for by its name, whole and streamed, and what is said to what the tool gave."""
    asked: dict[str, Any] = {**WAY, "messages": turns("How is the weather in Rome?"), "tools": [TOOL], "temperature": 0}
    named = {"type": "function", "function": {"name": "weather"}}
    whole = litellm.completion(**asked, tool_choice=named, max_tokens=100).choices[0].message
    chunks = list(litellm.completion(**asked, tool_choice=named, max_tokens=100, stream=True))
    [made] = whole.tool_calls
    back = [*asked["messages"], whole, {"role": "tool", "tool_call_id": made.id, "content": "It is warm."}]
    later = litellm.completion(**{**asked, "messages": back}, max_tokens=24)
    grown = litellm.stream_chunk_builder(chunks, messages=asked["messages"])
    return {
        "whole": made_in(whole),
        "streamed": made_in(grown.choices[0].message),
        "later": later.choices[0].message.content,
    }


def main() -> None:
    asked: dict[str, Any] = {**WAY, "messages": turns(question), "temperature": 0, "max_tokens": 64}
    whole = litellm.completion(**asked)
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(chunks, messages=turns(question))
    form = {"type": "json_schema", "json_schema": {"name": "legs", "schema": SCHEMA, "strict": True}}
    held = litellm.completion(**{**asked, "messages": turns("How many legs has a fox?"), "response_format": form})
    response = litellm.responses(**WAY, input=question, temperature=0, max_output_tokens=64)
    vectors = litellm.embedding(**WAY, input=[question, "fox"], encoding_format="float")
    text = litellm.text_completion(
        **{**WAY, "model": "text-completion-openai/trilby-demo"},
        prompt="Once there was a small boat",
        temperature=0,
        max_tokens=24,
    )
    told = {
        "whole": whole.choices[0].message.content,
        "usage": [whole.usage.prompt_tokens, whole.usage.completion_tokens],
        "pieces": [each.choices[0].delta.content or "" for each in chunks if each.choices],
        "streamed_usage": [built.usage.prompt_tokens, built.usage.completion_tokens],
        "finish": built.choices[0].finish_reason,
        "asynchronous": asyncio.run(litellm.acompletion(**asked)).choices[0].message.content,
        "call": call(),
        "form": json.loads(held.choices[0].message.content),
        "responses": "".join(
            part.text for item in response.output if item.type == "message" for part in item.content if part.text
        ),
        "vectors": [each["embedding"] for each in vectors.data],
        "completion": text.choices[0].text,
        "wrong": {
            "model": name_of(model="openai/nobody"),
            "key": name_of(api_key="wrong"),
            "length": name_of(messages=turns("fox " * 3000)),
            "value": name_of(temperature=7),
        },
    }
    print(json.dumps(told))


main()
