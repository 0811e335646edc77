"""What an answer is held to, in llguidance's words: a form that a request asks for, or one that is made here. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from llguidance import LLMatcher, grammar_from

from device_agent.answering.schema_parts import closed
from wire.request_messages import Grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

Kind = Literal["json", "regex", "choice", "grammar"]

OPTIONS: Final[JsonCompileOptions] = {"whitespace_flexible": False, "coerce_one_of": True}
"""JSON without blanks, which cost tokens. ``oneOf`` is taken for ``anyOf``: what is said matches one of its schemas,
and perhaps another one too."""

LENIENT: Final[JsonCompileOptions] = {**OPTIONS, "lenient": True}
"""The same, and what llguidance does not know limits nothing."""

TokenOf = Callable[[str], "int | None"]
"""The token that stands for a text by itself, where there is one that is no ordinary text to llguidance."""


@dataclass(frozen=True)
class Form:
    """A form.

    Attributes:
        param: the member of the request that asks for it.
        key: what tells it from other forms.
        parts: what of it comes from the request, each with the member that has it, and how it is compiled.
        made: makes llguidance's words of it; raises ValueError or RecursionError where a part is no form.
        may_be_left: an answer is of use without it too.
    """

    param: str
    key: str
    parts: tuple[tuple[Grammar, JsonCompileOptions], ...]
    made: Callable[[TokenOf], str]
    may_be_left: bool = False

    @cached_property
    def digest(self) -> bytes:
        """Of the key, which may have 64 KiB."""
        return hashlib.sha256(self.key.encode("utf-8", "surrogatepass")).digest()

    @classmethod
    def of(cls, grammar: Grammar, options: JsonCompileOptions = OPTIONS) -> Form:
        """The form that a request asks for."""
        kind, text = grammar.kind, grammar.text
        return cls(grammar.param, f"{kind}\n{text}", ((grammar, options),), lambda _: grammar_of(kind, text, options))


def grammar_of(kind: Kind, text: str, options: JsonCompileOptions = OPTIONS) -> str:
    """Return a form in llguidance's own words. Raises ValueError or RecursionError where it is none."""
    if kind == "json":
        schema = json.loads(text)
        if isinstance(schema, dict):
            closed(schema)
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
    return grammar_from(kind, text)


def named(name: str, made: str) -> dict[str, Any]:
    """Return such words as one of several grammars, which the first may call ``@name``."""
    if not made.lstrip().startswith("{"):
        return {"name": name, "lark_grammar": made}
    [grammar] = json.loads(made)["grammars"]
    return {**grammar, "name": name}


def side_by_side(first: str, others: list[dict[str, Any]]) -> str:
    """Return the words of several grammars, of which the first is Lark's and begins."""
    return json.dumps({"grammars": [{"lark_grammar": first}, *others]})
