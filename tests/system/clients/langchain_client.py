"""LangChain as its users have it: asked things of a server, it prints as JSON what it was told.

python langchain_client.py BASE KEY QUESTION
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

base, key, question = sys.argv[1:]
WAY: dict[str, Any] = {"base_url": base, "api_key": key, "model": "trilby-demo", "max_retries": 0}


class Animal(BaseModel):
    """An animal of a story."""

    kind: Literal["fox", "owl"]
    legs: int = Field(ge=2, le=4)


class Weather(BaseModel):
    """Of which place, and for how many days."""

    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)


def weather(city: str, days: int) -> str:
    """Says how the weather will be."""
    return f"It is warm in {city} for {days} days."


def call(chat: ChatOpenAI) -> dict[str, Any]:
    """A call that is asked for by its name, whole and streamed, and what is said to what the tool gave."""
    tool = StructuredTool.from_function(weather, args_schema=Weather)
    turns: list[Any] = [("human", "How is the weather in Rome?")]
    forced = chat.bind_tools([tool], tool_choice="weather")
    whole, [first, *rest] = forced.invoke(turns), forced.stream(turns)
    grown = sum(rest, first)
    [made] = whole.tool_calls
    later = chat.bind_tools([tool]).invoke([*turns, whole, tool.invoke(made)])
    streamed = [[each["name"], each["args"]] for each in grown.tool_calls]
    return {"whole": [[made["name"], made["args"]]], "streamed": streamed, "later": later.text}


def main() -> None:
    chat = ChatOpenAI(**WAY, temperature=0, max_tokens=64)
    whole, pieces = chat.invoke(question), list(chat.stream(question))
    turns = [("human", question), ("ai", str(whole.content)), ("human", "Why?")]
    called_form = chat.with_structured_output(Animal, method="function_calling")
    by_responses = ChatOpenAI(**WAY, temperature=0, max_tokens=64, use_responses_api=True)
    wrong = {}
    for name, asked in (("model", {"model": "nobody"}), ("key", {"api_key": "wrong"})):
        try:
            ChatOpenAI(**{**WAY, **asked}).invoke("Hi")
        except Exception as error:
            wrong[name] = [kind.__name__ for kind in type(error).__mro__]
    told = {
        "whole": whole.content,
        "usage": whole.usage_metadata,
        "pieces": [str(piece.content) for piece in pieces],
        "streamed_usage": [piece.usage_metadata for piece in pieces if piece.usage_metadata],
        "later": asyncio.run(chat.ainvoke(turns)).content,
        "batch": [each.content for each in chat.batch([question] * 4)],
        "form": chat.with_structured_output(Animal, method="json_schema").invoke("Tell me of an animal.").model_dump(),
        "responses": by_responses.invoke(question).text,
        "call": call(chat),
        "call_in_responses": call(by_responses),
        "called_form": called_form.invoke("Tell me of an animal.").model_dump(),
        "completion": OpenAI(**WAY, temperature=0, max_tokens=24).invoke("Once there was a small boat"),
        # Else it cuts texts by the tokens of a model of OpenAI's, and sends their numbers.
        "vectors": OpenAIEmbeddings(**WAY, check_embedding_ctx_length=False).embed_documents([question, "fox"]),
        "wrong": wrong,
    }
    print(json.dumps(told))


main()
