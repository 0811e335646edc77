"""The arguments of one tool that stand between tags, in llguidance's words. Pure.

Arguments come in the order of the schema, those that are not required at will. A value that has to be JSON is held to
its schema as JSON; one of a few texts is one of them; any other text goes as far as the closing tag, whatever its
schema says beside: where the tool is strict, a schema that says more is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from device_agent.answering.dialect.argument_kinds import TEXT, kind_of, kinds_of, resolved
from device_agent.answering.dialect.call_formats import Tags
from device_agent.answering.dialect.tagged_parser import MAX_KEY
from device_agent.answering.form import grammar_of, named

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

ANY_NAME: Final = "/[A-Za-z0-9_.-]{1,64}/"
"""An argument's name where the schema names none."""

MOST_OPEN: Final = 16
"""Arguments where the schema names none: a small model might go on for ever."""

_SCALARS: Final = {
    "integer": "/-?(0|[1-9][0-9]*)/",
    "number": r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/",
    "boolean": '("true" | "false")',
    "null": '"null"',
}
_SAYS_NOTHING: Final = frozenset(("title", "description", "default", "examples", "deprecated"))
_LISTED: Final = ("anyOf", "oneOf")
_WITHIN: Final = 8
"""Alternatives within one another that are looked into."""


class TaggedForm:
    """What the arguments of one tool are written as.

    Args:
        name: of the grammars that are made, with a number behind it.
        schema: of the arguments.
        strict: what is not held here is refused.
        options: how the schemas of single values are compiled.
        said: makes terms of a text.
        freely: terms of any text and the closing tag.
    """

    def __init__(
        self,
        tags: Tags,
        name: str,
        schema: dict[str, Any],
        *,
        strict: bool,
        options: JsonCompileOptions,
        said: Callable[[str], str],
        freely: str,
    ) -> None:
        self.others: list[dict[str, Any]] = []
        """The grammars of values that are JSON, beside the terms."""
        self._tags = tags
        self._name = name
        self._root = schema
        self._strict = strict
        self._options = options
        self._said = said
        self._freely = freely
        self._closing = said(("\n" if tags.padded else "") + tags.close)

    def terms(self) -> str:
        """All arguments. Raises ValueError or RecursionError where they cannot be written so."""
        top = resolved(self._root, self._root)
        properties, required = top.get("properties"), top.get("required")
        needed = [each for each in required if isinstance(each, str)] if isinstance(required, list) else []
        parts: dict[str, Any] = dict(properties) if isinstance(properties, dict) else {}
        for key in needed:
            parts.setdefault(key, {})
        terms = []
        for key, part in parts.items():
            term = f"{self._key(key, part)} {self._value(key, part)} {self._said(self._tags.after)}"
            terms.append(term if key in needed else f"({term})?")
        if not isinstance(properties, dict) and top.get("additionalProperties") is not False:
            tags = self._tags
            between = " | ".join(self._said(each) for each in (tags.value, tags.json) if each)
            opening = f"{self._said(tags.key)} {ANY_NAME} ({between})"
            terms.append(f"({opening} {self._freely} {self._said(tags.after)}){{0,{MOST_OPEN}}}")
        return " ".join(terms)

    def _is_json(self, part: Any) -> bool:
        kinds = kinds_of(part, self._root)
        return kinds != TEXT if self._tags.json else "string" not in kinds

    def _key(self, key: str, part: Any) -> str:
        if not 0 < len(key) <= MAX_KEY or key.strip() != key or any(sign in key for sign in "<>\n"):
            raise ValueError(f"this model cannot write the name of the argument {key[:MAX_KEY]!r}")
        tags = self._tags
        between = tags.json if tags.json and self._is_json(part) else tags.value
        return self._said(f"{tags.key}{key}{between}")

    def _value(self, key: str, part: Any) -> str:
        """A value and its closing tag."""
        if self._is_json(part):
            return f"{self._json(part)} {self._closing}"
        texts = self._texts(part)
        if texts is not None:
            if any(self._tags.close in text for text in texts):
                raise ValueError(f"this model cannot write a value of the argument {key!r}: it has {self._tags.close}")
            return f"({' | '.join(map(json.dumps, texts))}) {self._closing}"
        if self._strict and self._says_more(part):
            told = "a text can be held to 'enum' alone where a model writes arguments between tags"
            raise ValueError(f"of the argument {key!r} {told}: leave the rest out, or 'strict'")
        return self._freely

    def _json(self, part: Any) -> str:
        found = {name: value for name, value in resolved(part, self._root).items() if name not in _SAYS_NOTHING}
        if found.keys() == {"type"} and isinstance(kind := found["type"], str) and kind in _SCALARS:
            return _SCALARS[kind]
        shared = {name: self._root[name] for name in ("$defs", "definitions") if name in self._root}
        name = f"{self._name}_{len(self.others)}"
        self.others.append(named(name, grammar_of("json", json.dumps(shared | part), self._options)))
        return f"@{name}"

    def _texts(self, part: Any, within: int = _WITHIN) -> list[str] | None:
        """The few texts that a value may be, written as they are; None where it may be any."""
        found: Mapping[str, Any] = resolved(part, self._root)
        if "const" in found:
            return [_written(found["const"])]
        if isinstance(listed := found.get("enum"), list) and listed:
            return list(dict.fromkeys(map(_written, listed)))
        if found.get("type") == "null":
            return ["null"]
        each = next((found[name] for name in _LISTED if isinstance(found.get(name), list) and found[name]), None)
        if each is None or not within:
            return None
        texts = [self._texts(one, within - 1) for one in each]
        return list(dict.fromkeys(text for some in texts for text in some or ())) if None not in texts else None

    def _says_more(self, part: Any, within: int = _WITHIN) -> bool:
        """Whether a schema says more of a value than which kinds it may be."""
        found = resolved(part, self._root)
        if not within or found.keys() - _SAYS_NOTHING - {"type", *_LISTED}:
            return True
        listed = [each for name in _LISTED if isinstance(each := found.get(name), list)]
        return any(self._says_more(one, within - 1) for each in listed for one in each)


def _written(value: Any) -> str:
    return value if kind_of(value) == "string" else json.dumps(value)
