"""Answers in a form, as users ask for them: openai-python with a pydantic model, and a token websocket."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

import pytest
from installation import Installation
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, Field
from websockets.asyncio.client import connect

pytestmark = pytest.mark.system


class Trait(BaseModel):
    """Part of an animal."""

    name: Literal["sly", "kind", "old"]
    sure: bool


class Animal(BaseModel):
    """What is asked for."""

    kind: Literal["fox", "owl"]
    name: str = Field(max_length=12)
    legs: int = Field(ge=2, le=4)
    traits: list[Trait] = Field(max_length=2)


def test_openai_reads_what_it_asked_for(installation: Installation) -> None:
    """Parsed into the model, whole, streamed and of several choices; the same with and without drafts."""
    with OpenAI(base_url=installation.base, api_key="none", max_retries=0) as openai:
        turns = [{"role": "user", "content": "Tell me of an animal."}]
        texts = set()
        for draft in ("none", "lookup", ""):
            reply = openai.chat.completions.parse(
                model="trilby-demo",
                messages=turns,  # type: ignore[arg-type]
                response_format=Animal,
                temperature=0,
                extra_body={"draft": draft},
            )
            choice = reply.choices[0]
            assert isinstance(choice.message.parsed, Animal) and choice.finish_reason == "stop"
            texts.add(choice.message.content)
        assert len(texts) == 1
        with openai.chat.completions.stream(
            model="trilby-demo",
            messages=turns,  # type: ignore[arg-type]
            response_format=Animal,
            temperature=1.0,
            seed=3,
            n=2,
        ) as stream:
            final = stream.get_final_completion()
        assert [isinstance(each.message.parsed, Animal) for each in final.choices] == [True, True]
        found = openai.completions.create(
            model="trilby-demo", prompt="The moon is", extra_body={"structured_outputs": {"choice": ["red", "blue"]}}
        )
        assert found.choices[0].text in ("red", "blue") and found.choices[0].finish_reason == "stop"
        with pytest.raises(BadRequestError) as caught:
            openai.chat.completions.create(
                model="trilby-demo",
                messages=turns,  # type: ignore[arg-type]
                extra_body={"guided_json": {"properties": {"a": {"type": "string", "pattern": "("}}}},
            )
        assert caught.value.param == "guided_json.properties.a"


def test_the_token_socket_has_forms_too(installation: Installation) -> None:
    """The same member, the same text."""

    async def ask() -> str:
        text = ""
        async with connect(installation.base.replace("http", "ws") + "/stream") as socket:
            body = {"prompt": "An animal:", "guided_json": Animal.model_json_schema(), "max_tokens": 100}
            await socket.send(json.dumps(body))
            while (message := json.loads(await asyncio.wait_for(socket.recv(), 60)))["type"] != "done":
                text += message.get("text", "")
                assert message["type"] != "error", message
        return text

    Animal.model_validate_json(asyncio.run(ask()))
