"""instructor as its users have it, held to a JSON schema and by calls: asked things of a server, it prints as JSON what
it was told.

python instructor_client.py BASE KEY
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

import instructor
from instructor.core.exceptions import InstructorRetryException
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field, field_validator

base, key = sys.argv[1:]
ASKED: dict[str, Any] = {
    "model": "trilby-demo",
    "messages": [{"role": "user", "content": "Tell me of an animal."}],
    "temperature": 0,
    "max_tokens": 200,
}


class Animal(BaseModel):
    """An animal of a story."""

    kind: Literal["fox", "owl"]
    name: str = Field(max_length=12)
    legs: int = Field(ge=2, le=4)


class Nothing(Animal):
    """What no answer is."""

    @field_validator("legs")
    @classmethod
    def never(cls, legs: int) -> int:
        raise ValueError("it has another number of legs")


def attempts_of(client: Any) -> Any:
    """How often is asked for what no answer is; each time with what was wrong before."""
    try:
        client.chat.completions.create(**ASKED, response_model=Nothing, max_retries=2)
        return None
    except InstructorRetryException as error:
        return error.n_attempts


def main() -> None:
    modes = (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS)
    way: dict[str, Any] = {"base_url": base, "api_key": key, "max_retries": 0}
    clients = {mode.name: instructor.from_openai(OpenAI(**way), mode=mode) for mode in modes}
    held, called = clients["JSON_SCHEMA"], clients["TOOLS"]
    found, raw = held.chat.completions.create_with_completion(**ASKED, response_model=Animal)
    partial = [each.model_dump() for each in held.chat.completions.create_partial(**ASKED, response_model=Animal)]
    grown = [each.model_dump() for each in called.chat.completions.create_partial(**ASKED, response_model=Animal)]
    later = instructor.from_openai(AsyncOpenAI(**way), mode=modes[0])
    told = {
        "found": found.model_dump(),
        "said": json.loads(raw.choices[0].message.content or ""),
        "steps": len(partial),
        "last": partial[-1],
        "asynchronous": asyncio.run(later.chat.completions.create(**ASKED, response_model=Animal)).model_dump(),
        "called": called.chat.completions.create(**ASKED, response_model=Animal).model_dump(),
        "called_last": grown[-1],
        "retried": [attempts_of(held), attempts_of(called)],
    }
    print(json.dumps(told))


main()
