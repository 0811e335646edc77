"""How large a form may be to be compiled in about a second. Pure.

The numbers were measured on one slow core: what grows with the square of a count, or faster, is counted.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from device_agent.answering.form import Form
from device_agent.answering.schema_parts import pointed_at
from wire.errors import Code, SessionFailed
from wire.request_messages import Grammar

MOST: Final = {
    "properties": 500,
    "patternProperties": 20,
    "pattern": 100,
    "allOf": 100,
    "anyOf": 400,
    "oneOf": 400,
    "enum": 5000,
    "$ref": 400,
}
"""Members and entries of a schema, all of its parts together: properties, patterns, alternatives, values."""

BESIDE: Final = 8
"""Times as many may all schemas of a form have that stand beside each other, as those of tools do: what grows with the
square of a count grows within each. With 128 schemas of 20 properties compiling takes a fifth of a second."""

MAX_TOGETHER: Final = 3
"""Patterns that one text has to match, all of them; of a grammar, ``&`` and ``~``. Time doubles with each."""

MAX_MULTIPLE: Final = 10_000
"""What multiples are of, with all decimal places counted in: there is a state for each remainder. Of numbers that have
to be multiples of several the product counts, and of a schema also the sum of all."""

MAX_EXPRESSION: Final = 2**13
"""Characters of a regular expression or a grammar."""

_LITERAL: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"?|/(?:[^/\\\n]|\\.)+/?')
"""One that never ends goes as far as its line: looked for again from each of its places it would take the square."""
_AT_ONCE: Final = ("allOf", "anyOf", "oneOf")
_EMBEDDED: Final = re.compile(r"%\s*(json|regex|lark|llguidance)")


def check_form(form: Form) -> None:
    """Raises ``SessionFailed`` where a form is too large to be compiled soon."""
    counts = Counter[str]()
    for part, _ in form.parts:
        counts += check(part)
    for name, most in MOST.items():
        if counts[name] > BESIDE * most:
            told = f"the schemas' '{name}' are {counts[name]}, and may be {BESIDE * most} all together: send fewer"
            raise SessionFailed(Code.INVALID_REQUEST, told, param=form.param)


def check(grammar: Grammar) -> Counter[str]:
    """Raises ``SessionFailed`` where one part of a form is too large to be compiled soon; returns how many it has of
    what is counted."""
    counts, multiples = Counter[str](), 0.0
    if grammar.kind in ("regex", "grammar") and len(grammar.text) > MAX_EXPRESSION:
        told = f"it has {len(grammar.text)} characters, and may have {MAX_EXPRESSION}: make it smaller"
        raise SessionFailed(Code.INVALID_REQUEST, told, param=grammar.param)
    if grammar.kind == "grammar":
        _check_grammar(grammar)
    if grammar.kind != "json":
        return counts
    schema = read_schema(grammar)
    left: list[Any] = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            for name in MOST.keys() & value.keys():
                counts[name] += len(value[name]) if isinstance(value[name], (list, dict)) else 1
            multiples += _multiple(value)
            left += value.values()
        elif isinstance(value, list):
            left += value
    for name, most in MOST.items():
        if counts[name] > most:
            told = f"the schema's '{name}' are {counts[name]}, and may be {most} all together: make it smaller"
            raise SessionFailed(Code.INVALID_REQUEST, told, param=grammar.param)
    try:
        together, product = (_Together(schema, own).of(schema) for own in (_patterns, _digits))
    except RecursionError:  # One reference behind the other.
        together = product = math.inf
    if together > MAX_TOGETHER:
        told = f"a text in it has to match more than {MAX_TOGETHER} patterns at once: join them"
        raise SessionFailed(Code.INVALID_REQUEST, told, param=grammar.param)
    if max(multiples, 10**product if product < 9 else math.inf) > MAX_MULTIPLE + 0.5:
        told = f"'multipleOf' may be {MAX_MULTIPLE} all together, decimal places counted in: leave it out"
        raise SessionFailed(Code.INVALID_REQUEST, told, param=grammar.param)
    return counts


def _check_grammar(grammar: Grammar) -> None:
    said = _LITERAL.sub("", grammar.text)
    if found := _EMBEDDED.search(said):
        told = f"'%{found.group(1)}' cannot be part of a grammar here"
        raise SessionFailed(Code.INVALID_REQUEST, told, param=grammar.param)
    if said.count("&") + said.count("~") > MAX_TOGETHER:
        told = f"a grammar has at most {MAX_TOGETHER} '&' and '~' together"
        raise SessionFailed(Code.INVALID_REQUEST, told, param=grammar.param)


class _Together:
    """How much one text may have to match, by a schema: where schemas hold at once, what each of them says, at whatever
    depth, for what is deep in one may meet what is as deep in another.

    own: what counts of one part, the parts inside left out.
    """

    def __init__(self, schema: dict[str, Any], own: Callable[[dict[str, Any]], float]) -> None:
        self._root, self._own = schema, own
        self._known: dict[int, float] = {}

    def of(self, part: Any) -> float:
        """The most for any text in a part. Raises RecursionError where references go on for too long."""
        if isinstance(part, list):
            return max(map(self.of, part), default=0)
        if not isinstance(part, dict):
            return 0
        if id(part) not in self._known:
            self._known[id(part)] = 0  # Of a circle.
            inside = max((self.of(each) for name, each in part.items() if name not in _AT_ONCE), default=0)
            listed = part.get("allOf")
            others = sum(map(self.of, listed)) if isinstance(listed, list) else self.of(listed)
            others += self.of(part.get("anyOf")) + self.of(part.get("oneOf"))
            self._known[id(part)] = (
                max(self._own(part), inside) + others + self.of(pointed_at(self._root, part.get("$ref")))
            )
        return self._known[id(part)]


def _patterns(part: dict[str, Any]) -> float:
    return sum(isinstance(part.get(name), str) for name in ("pattern", "format"))


def _multiple(part: dict[str, Any]) -> float:
    """What numbers are to be multiples of, in units of its last decimal place; where it is below 1, of 1."""
    said = part.get("multipleOf")
    if not isinstance(said, (int, float)) or isinstance(said, bool):
        return 0.0
    if not abs(said) <= MAX_MULTIPLE:  # Nor NaN.
        return math.inf
    _, digits, places = Decimal(repr(said)).normalize().as_tuple()
    assert isinstance(places, int)
    most = sys.float_info.max_10_exp
    return max(float(abs(said)), 1.0) * 10.0 ** min(most, max(0, -places)) if digits else 0.0


def _digits(part: dict[str, Any]) -> float:
    """Of these their logarithm: products are sums of them."""
    return math.log10(max(1.0, _multiple(part)))


def read_schema(grammar: Grammar) -> dict[str, Any]:
    """A schema; one that is no object limits nothing. Raises ``SessionFailed`` where it is no JSON."""
    try:
        schema = json.loads(grammar.text)
    except (ValueError, RecursionError):
        raise SessionFailed(Code.INVALID_REQUEST, "it is no JSON schema", param=grammar.param) from None
    return schema if isinstance(schema, dict) else {}
