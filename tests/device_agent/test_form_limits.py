"""What of a form is counted before it is compiled, and what a schema leaves open."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest

from device_agent.answering.form_limits import MAX_TOGETHER, MOST, check
from device_agent.answering.schema_parts import closed
from wire.errors import SessionFailed
from wire.request_messages import Grammar


def passes(kind: Any, text: str) -> bool:
    """Whether it is let through."""
    try:
        check(Grammar(kind, text, "form"))
    except SessionFailed as failure:
        assert failure.param == "form"
        return False
    return True


def schema(found: Any) -> bool:
    """Whether a schema is let through."""
    return passes("json", json.dumps(found))


def patterns(count: int) -> list[dict[str, str]]:
    """So many that differ."""
    return [{"pattern": str(at)} for at in range(count)]


@pytest.mark.parametrize("name", MOST)
def test_members_count_all_together(name: str) -> None:
    """Wherever in the schema they are: as many as may be, and one more."""
    for count, wanted in ((MOST[name], True), (MOST[name] + 1, False)):
        half = count // 2
        parts: list[Any] = []
        for begin, end in ((0, half), (half, count)):
            if name in ("properties", "patternProperties"):
                parts.append({name: {str(at): {} for at in range(begin, end)}})
            elif name in ("pattern", "$ref"):
                parts += [{name: "x"} for _ in range(begin, end)]
            else:
                parts.append({name: list(range(begin, end))})
        assert schema({"items": parts}) is wanted


def test_patterns_that_hold_at_once_are_few() -> None:
    """In one ``allOf``, through references, beside one another, and deep in what holds at once; not side by side."""
    few, many = patterns(MAX_TOGETHER), patterns(MAX_TOGETHER + 1)
    deep = [{"properties": {"a": {"items": each}}} for each in many]
    chain = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}", **each} for at, each in enumerate(many)}
    doubled = {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(4)} | {"d4": {"pattern": "a"}}
    assert schema({"allOf": few}) and schema({"properties": {str(at): each for at, each in enumerate(many)}})
    assert schema({"anyOf": many}) and schema({"properties": {"pattern": {}, "format": {}, "allOf": {}}})
    assert not schema({"allOf": many}) and not schema({"allOf": deep})
    assert not schema({"properties": {"allOf": {"allOf": many}}})
    assert not schema({"$defs": chain, "$ref": "#/$defs/d0"})
    assert not schema({"$defs": doubled, "$ref": "#/$defs/d0"})
    assert schema({"$ref": "#"}) and schema({"$defs": {"a": {"$ref": "#/$defs/a"}}})


def test_multiples_have_few_remainders() -> None:
    """All those of one number together, and all of a schema: compiling takes memory and time for each remainder."""

    def number(of: object) -> dict[str, Any]:
        return {"type": "number", "multipleOf": of}

    assert schema(number(7919)) and schema(number(0.0001)) and schema(number(0.25)) and schema(number(100.0))
    for of in (10_007, 1_000_003, 0.00001, 1.00007, 1e300, 10**400, 1e-310, 5e-324, math.nan, math.inf):
        assert not schema(number(of))
    assert schema({"allOf": [number(97), number(89)]})
    assert not schema({"allOf": [number(97), number(89), number(83)]})
    assert not schema({"$defs": {"a": number(997)}, "$ref": "#/$defs/a", "anyOf": [number(991)]})
    assert schema({"properties": {f"p{at}": number(100) for at in range(100)}})
    assert not schema({"properties": {f"p{at}": number(997) for at in range(20)}})
    assert schema({"properties": {"multipleOf": number(True)}})


def test_a_grammars_own_signs_count_and_those_in_its_texts_do_not() -> None:
    """Nor can a schema be put into one."""
    assert passes("grammar", 'start: A\nA: /a&~&b/ & "&&&&" & ~/"/')
    assert not passes("grammar", "start: A\nA: /a/ & /b/ & /c/ & ~/d/")
    assert not passes("grammar", 'start: A\nA: /"/ & /a/ & /b/ & /c/ & /"/')
    assert not passes("grammar", 'start: %json {"type": "object"}')
    assert passes("grammar", 'root ::= "%json"')


@pytest.mark.parametrize("begun", ['"' + '\\"' * 4090, "/" + "\\/" * 4090])
def test_a_text_in_a_grammar_that_never_ends_is_read_once(begun: str) -> None:
    """Looked for again from each of its places it would take a third of a second."""
    began = time.process_time()
    assert passes("grammar", begun)
    assert time.process_time() - began < 0.1


def test_objects_are_closed_where_one_schema_alone_names_their_properties() -> None:
    """A property may have any name; what a schema says itself stays."""
    found: dict[str, Any] = {
        "properties": {"properties": {"properties": {}}, "open": {"properties": {}, "additionalProperties": True}},
        "$defs": {"a": {"items": {"properties": {"b": {}}}}},
        "const": {"properties": {}},
    }
    closed(found)
    assert found == {
        "properties": {
            "properties": {"properties": {}, "additionalProperties": False},
            "open": {"properties": {}, "additionalProperties": True},
        },
        "$defs": {"a": {"items": {"properties": {"b": {}}, "additionalProperties": False}}},
        "const": {"properties": {}},
        "additionalProperties": False,
    }
    several: list[dict[str, Any]] = [
        {"allOf": [{"properties": {}}]},
        {"items": {"$ref": "#", "properties": {"a": {}}}},
    ]
    for joined in several:
        before = json.dumps(joined)
        closed(joined)
        assert json.dumps(joined) == before
