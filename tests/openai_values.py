"""Values that schemas of OpenAI's OpenAPI document allow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openai_judges import document
from openai_requests import json_in


class Values:
    """Of each alternative, and of each member of an object, one at least.

    A text is its example or its default where there is one, a number its bounds too.

    Args:
        given: the values of schemas of these names, which say less than a server may ask for.
        asked: members that objects of schemas of these names have, beside those that they must have.
    """

    def __init__(self, given: Mapping[str, Sequence[Any]], asked: Mapping[str, Sequence[str]]) -> None:
        self._schemas: dict[str, Any] = document()["components"]["schemas"]
        self._given = given
        self._asked = asked
        self._within: list[str] = []

    def members(self, schema: str) -> dict[str, list[Any]]:
        """The values of each member that an object of the schema of this name may have."""
        properties, _ = self._members(self._schemas[schema])
        return {name: self._of(part) for name, part in properties.items()}

    def _of(self, schema: Mapping[str, Any]) -> list[Any]:
        """None of them twice; none at all where a schema goes in circles."""
        return list({json.dumps(each, sort_keys=True): each for each in self._made(schema)}.values())

    def _made(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        if "$ref" in schema:
            yield from self._named(schema["$ref"].rpartition("/")[2])
        elif listed := (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
            for each in listed:
                yield from self._of(each)
        elif "enum" in schema:
            yield from schema["enum"]
        elif "properties" in schema or "allOf" in schema or schema.get("type") == "object":
            yield from self._objects(schema)
        elif schema.get("type") == "array":
            yield from ([each] for each in self._of(schema["items"]))
            yield from (each for each in _said(schema) if isinstance(each, list))
        else:
            yield from _plain(schema)

    def _named(self, name: str) -> Sequence[Any]:
        if name in self._given:
            return self._given[name]
        if name in self._within:
            return []
        self._within.append(name)
        schema = self._schemas[name]
        if name in self._asked:
            schema = {**schema, "required": [*schema["required"], *self._asked[name]]}
        found = self._of(schema)
        self._within.pop()
        return found

    def _objects(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        """One with what it must have, and for each value of each member one with that."""
        properties, required = self._members(schema)
        if not properties and "allOf" in schema:  # Of something that is no object.
            yield from self._of(schema["allOf"][0])
            return
        parts = {name: self._of(part) for name, part in properties.items()}
        if not all(parts.get(name, [None]) for name in required):
            return
        least = {name: parts.get(name, ["x"])[0] for name in required}
        yield least
        yield from ({**least, name: value} for name, values in parts.items() for value in values)

    def _members(self, schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The schemas of an object's members, and which of them it must have."""
        if "$ref" in schema:
            return self._members(self._schemas[schema["$ref"].rpartition("/")[2]])
        properties, required = dict(schema.get("properties", {})), list(schema.get("required", ()))
        for each in schema.get("allOf", ()):
            more, needed = self._members(each)
            properties |= more
            required += needed
        return properties, required


def _said(schema: Mapping[str, Any]) -> list[Any]:
    """What a schema has as its example and its default; lists may be written there as text."""
    found = [schema[name] for name in ("example", "default") if schema.get(name) is not None]
    return [json_in(each) if schema.get("type") == "array" and isinstance(each, str) else each for each in found]


def _plain(schema: Mapping[str, Any]) -> list[Any]:
    kind, said = schema.get("type"), _said(schema)
    if kind == "boolean":
        return [True, False]
    if kind == "null":
        return [None]
    if kind in ("integer", "number"):
        return [*said, *(schema[name] for name in ("minimum", "maximum") if name in schema)] or [1]
    return said or (["x"] if kind == "string" else [{}])
