"""Which kinds of JSON values an argument may be, by its tool's schema, and a written value as one of them. Pure.

Where arguments stand between tags a text is written as it is, so ``12`` may be a text or a number: the schema says.
"""

from __future__ import annotations

import json
from typing import Any, Final

from device_agent.answering.schema_parts import pointed_at

Kinds = frozenset[str]

ALL: Final[Kinds] = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))
TEXT: Final[Kinds] = frozenset(("string",))

MOST_LOOKS: Final = 4096
"""Parts of a schema that are looked at to know the kinds of one argument; with more it may be anything."""

MAX_DEPTH: Final = 32
"""Parts within one another, and references, one behind the other."""

_WORDS: Final = {"True": ("boolean", "true"), "False": ("boolean", "false"), "None": ("null", "null")}
"""Python's, which some chat templates show the model."""


class ArgumentKinds:
    """Of one tool.

    Args:
        parameters: the schema of its arguments, as text; what is none says nothing.
    """

    def __init__(self, parameters: str) -> None:
        self._root = _object(parameters)
        found = resolved(self._root, self._root).get("properties")
        self._named: dict[str, Any] = found if isinstance(found, dict) else {}
        self._known: dict[str, Kinds] = {}

    def of(self, argument: str) -> Kinds:
        """What an argument may be; anything where the schema does not name it."""
        if argument not in self._known:
            self._known[argument] = kinds_of(self._named.get(argument), self._root)
        return self._known[argument]


def kinds_of(part: Any, root: dict[str, Any]) -> Kinds:
    """What a value of this part of a schema may be."""
    return _Looking(root).kinds(part) or ALL


def resolved(part: Any, root: dict[str, Any]) -> dict[str, Any]:
    """A part of a schema, or what it points at; empty where that is none."""
    for _ in range(MAX_DEPTH):
        if not isinstance(part, dict) or "$ref" not in part:
            break
        part = pointed_at(root, part["$ref"])
    return part if isinstance(part, dict) and "$ref" not in part else {}


def as_json(text: str, kinds: Kinds) -> str:
    """A written value, as JSON."""
    bare = text.strip()
    kind = _kind_in(bare)
    if kind is not None and kind in kinds and kind != "string":
        return bare
    if "string" in kinds:
        return json.dumps(text, ensure_ascii=False)
    kind_of_word, word = _WORDS.get(bare, ("", ""))
    if kind_of_word in kinds:
        return word
    return bare if kind is not None else json.dumps(text, ensure_ascii=False)


def kind_of(value: Any) -> str:
    """What a value that JSON has is called there."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if value == value // 1 else "number"
    names = ((str, "string"), (list, "array"), (dict, "object"))
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def _kind_in(text: str) -> str | None:
    """What a text is in JSON; None where it is none."""
    try:
        return kind_of(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError, OverflowError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


class _Looking:
    """One look through a schema, which may go in circles, or be very wide."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = MOST_LOOKS

    def kinds(self, part: Any, depth: int = MAX_DEPTH) -> Kinds:
        """Those of a part; all, where it does not say or nobody can tell."""
        self._left -= 1
        if not isinstance(part, dict) or not depth or self._left < 0:
            return ALL
        if "$ref" in part:
            return self.kinds(pointed_at(self._root, part["$ref"]), depth - 1)
        if "const" in part:
            return frozenset((kind_of(part["const"]),))
        if isinstance(listed := part.get("enum"), list) and listed:
            return frozenset(map(kind_of, listed))
        said = [self._named(part.get("type"))]
        for name in ("anyOf", "oneOf"):
            if isinstance(listed := part.get(name), list) and listed:
                said.append(frozenset[str]().union(*(self.kinds(each, depth - 1) for each in listed)))
        if isinstance(listed := part.get("allOf"), list):
            said += [self.kinds(each, depth - 1) for each in listed]
        found = ALL
        for each in said:
            found &= each
        return found

    def _named(self, type: Any) -> Kinds:
        names = [type] if isinstance(type, str) else type if isinstance(type, list) else []
        found = ALL.intersection(each for each in names if isinstance(each, str))
        return (found | {"integer"} if "number" in found else found) or ALL
