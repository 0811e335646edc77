"""Who says whether a reply is as OpenAI publishes it: the types of its own package, and its OpenAPI document.

The document is not part of this repository: https://github.com/openai/openai-openapi has it. Where it lies the variable
``OPENAI_DOCUMENT`` says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml
from checkpoints import DATA
from pydantic import BaseModel, TypeAdapter

DOCUMENT = Path(os.environ.get("OPENAI_DOCUMENT", DATA / "openapi" / "openai.yaml"))


@lru_cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def unknown_members(kind: Any, reply: Any) -> set[str]:
    """Members of a reply that OpenAI's package does not know.

    Raises:
        pydantic.ValidationError: it is none of this kind, every value of its exact type.
    """
    return set(_unknown(_adapter(kind).validate_python(reply, strict=True)))


def _unknown(value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from value.model_extra or ()
        for name in type(value).model_fields:
            yield from _unknown(getattr(value, name))
    elif isinstance(value, dict):
        for each in value.values():
            yield from _unknown(each)
    elif isinstance(value, list):
        for each in value:
            yield from _unknown(each)


@lru_cache
def published() -> dict[str, Any]:
    """The document as it is; the test is skipped where it is not at hand."""
    if not DOCUMENT.is_file():
        pytest.skip("OpenAI's OpenAPI document is not at hand: OPENAI_DOCUMENT says where it is")
    with DOCUMENT.open("rb") as file:
        found: dict[str, Any] = yaml.load(file, Loader=yaml.CSafeLoader)
    return found


@lru_cache
def document() -> dict[str, Any]:
    """The published schemas by name."""
    return {"components": {"schemas": _with_nulls(published()["components"]["schemas"])}}


def wrong_by_document(schema: str, reply: Any) -> list[str]:
    """What of a reply is not as the schema of this name has it, and where."""
    root = document()
    assert schema in root["components"]["schemas"], f"the document has no schema {schema}"
    judge = jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{schema}", **root})
    return [f"{error.json_path}: {error.message[:300]}" for error in judge.iter_errors(reply)]


def _with_nulls(schema: Any) -> Any:
    """OpenAPI's older way to say that a value may be null, as JSON Schema says it."""
    if isinstance(schema, list):
        return [_with_nulls(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _with_nulls(each) for name, each in schema.items() if name != "nullable" or each is not True}
    return {"anyOf": [made, {"type": "null"}]} if schema.get("nullable") is True else made


def objects_in(reply: httpx.Response) -> list[Any]:
    """What a reply says: one object, or those of its stream."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return [reply.json()]
    told = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(each) for each in told if each != "[DONE]"]


def members_in_document(schema: str) -> set[str]:
    """The members that an object of this schema may have."""
    schemas = document()["components"]["schemas"]

    def found(part: Any) -> Iterator[str]:
        if not isinstance(part, dict):
            return
        if (pointer := part.get("$ref", "")).startswith("#/components/schemas/"):
            yield from found(schemas[pointer.rpartition("/")[2]])
        yield from part.get("properties", ())
        for each in part.get("allOf", ()):
            yield from found(each)

    return set(found(schemas[schema]))


def settled(reply: Any) -> Any:
    """A reply with what is not known yet left out or filled in, where the schemas want it to be known and the examples
    of the same document, as OpenAI's server, have null: usage and the reason of a text that goes on, the score of a
    text's first token."""
    if isinstance(reply, list):
        return [settled(each) for each in reply]
    if not isinstance(reply, dict):
        return reply
    known = {name: settled(each) for name, each in reply.items() if not (name == "usage" and each is None)}
    if "text" in known and known.get("finish_reason", "") is None:
        known["finish_reason"] = "stop"
    for name in ("token_logprobs", "top_logprobs"):
        if isinstance(listed := known.get(name), list) and listed and listed[0] is None:
            known[name] = listed[1:]
    return known
