"""instructor as its users have it, held to a JSON schema: asked things of a server, it prints as JSON what it was told.

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


def main() -> None:
    modes = (instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON)
    way: dict[str, Any] = {"base_url": base, "api_key": key, "max_retries": 0}
    clients = {mode.name: instructor.from_openai(OpenAI(**way), mode=mode) for mode in modes}
    held = clients["JSON_SCHEMA"]
    found, raw = held.chat.completions.create_with_completion(**ASKED, response_model=Animal)
    partial = [each.model_dump() for each in held.chat.completions.create_partial(**ASKED, response_model=Animal)]
    later = instructor.from_openai(AsyncOpenAI(**way), mode=modes[0])
    try:
        held.chat.completions.create(**ASKED, response_model=Nothing, max_retries=2)
        retried: Any = None
    except InstructorRetryException as error:
        retried = error.n_attempts
    told = {
        "found": found.model_dump(),
        "said": json.loads(raw.choices[0].message.content or ""),
        "steps": len(partial),
        "last": partial[-1],
        "asynchronous": asyncio.run(later.chat.completions.create(**ASKED, response_model=Animal)).model_dump(),
        "retried": retried,
    }
    print(json.dumps(told))


main()
