"""Of what form an answer is asked for, in the words of OpenAI and of vLLM; and who can hold it to one."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest

from gateway.errors import RequestError
from gateway.parsing import parse
from gateway.policy import models_served
from gateway.registry.registry import AgentRecord
from wire.request_messages import Grammar, ServedModel

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": ["[", '"{']}}}
AS_TEXT = json.dumps(SCHEMA)
BODIES: dict[str, dict[str, Any]] = {
    "chat.completions": {"messages": [{"role": "user", "content": "x"}]},
    "completions": {"prompt": "x"},
}


def form(**members: Any) -> Grammar | None:
    """What both endpoints read."""
    found = [parse(at, json.dumps(body | members).encode()).terms.grammar for at, body in BODIES.items()]  # type: ignore[arg-type]
    assert found[0] == found[1]
    return found[0]


def refused(**members: Any) -> str | None:
    """The member that is refused."""
    with pytest.raises(RequestError) as caught:
        form(**members)
    assert caught.value.status == 400
    return caught.value.param


def wrapped(**members: Any) -> dict[str, Any]:
    """A schema as OpenAI's clients send it."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True} | members}


def nested(depth: int) -> str:
    """A schema so deep."""
    return '{"items":' * (depth - 1) + "{}" + "}" * (depth - 1)


FORMS: list[tuple[dict[str, Any], tuple[str, str, str] | None]] = [
    ({}, None),
    ({"response_format": None}, None),
    ({"response_format": {"type": "text"}}, None),
    ({"structured_outputs": {}}, None),
    ({"response_format": {"type": "json_object"}}, ("json", '{"type":"object"}', "response_format")),
    ({"response_format": wrapped(schema=SCHEMA)}, ("json", AS_TEXT, "response_format.json_schema.schema")),
    ({"response_format": wrapped()}, ("json", '{"type":"object"}', "response_format.json_schema")),
    (
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        ("json", AS_TEXT, "response_format.schema"),
    ),
    ({"structured_outputs": {"json": SCHEMA, "regex": None}}, ("json", AS_TEXT, "structured_outputs.json")),
    ({"structured_outputs": {"json": AS_TEXT}}, ("json", AS_TEXT, "structured_outputs.json")),
    (
        {"structured_outputs": {"json_object": True}},
        ("json", '{"type":"object"}', "structured_outputs.json_object"),
    ),
    ({"structured_outputs": {"regex": "a|b"}}, ("regex", "a|b", "structured_outputs.regex")),
    ({"structured_outputs": {"choice": ["a", "é"]}}, ("choice", '["a","é"]', "structured_outputs.choice")),
    ({"structured_outputs": {"grammar": "root ::= x"}}, ("grammar", "root ::= x", "structured_outputs.grammar")),
    ({"guided_json": SCHEMA}, ("json", AS_TEXT, "guided_json")),
    ({"guided_json": True}, ("json", "true", "guided_json")),
    ({"guided_regex": "a"}, ("regex", "a", "guided_regex")),
    ({"guided_choice": ["a"]}, ("choice", '["a"]', "guided_choice")),
    ({"guided_grammar": "x"}, ("grammar", "x", "guided_grammar")),
    ({"guided_json": msgspec.Raw(nested(64).encode())}, ("json", nested(64), "guided_json")),
]


@pytest.mark.parametrize(
    ("members", "wanted"), FORMS, ids=[f"{next(iter(each), None)}-{at}" for at, (each, _) in enumerate(FORMS)]
)
def test_all_names_for_a_form_are_read(members: dict[str, Any], wanted: tuple[str, str, str] | None) -> None:
    """In both endpoints, the schema as it was sent."""
    for at, body in BODIES.items():
        found = parse(at, json.dumps(body).encode()[:-1] + _members(members)).terms.grammar  # type: ignore[arg-type]
        assert found == (None if wanted is None else Grammar(*wanted))  # type: ignore[arg-type]


def _members(members: dict[str, Any]) -> bytes:
    """Further members of a JSON object, and its end."""
    each = (
        json.dumps(name).encode() + b": " + (bytes(value) if isinstance(value, msgspec.Raw) else _plain(value))
        for name, value in members.items()
    )
    return b"".join(b", " + one for one in each) + b"}"


def _plain(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": 5}}, "response_format.type"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": wrapped(schema=[1])}, "response_format.json_schema.schema"),
        ({"response_format": wrapped(schema="{")}, "response_format.json_schema.schema"),
        ({"response_format": wrapped(name=5)}, "response_format.json_schema.name"),
        ({"response_format": wrapped(schema={"enum": ["x" * 70_000]})}, "response_format.json_schema.schema"),
        ({"structured_outputs": 5}, "structured_outputs"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a"] * 1001}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [5]}}, "structured_outputs.choice[0]"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex"),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "guided_json"),
        ({"guided_json": "\ud800"}, None),
    ],
)
def test_a_bad_form_is_named(members: dict[str, Any], param: str | None) -> None:
    """By the path of what is wrong."""
    assert refused(**members) in (param, *members)


def test_a_deep_schema_is_refused_before_it_is_read() -> None:
    """However deep; brackets in its texts do not count."""
    for depth in (65, 5000, 100_000):
        body = b'{"prompt": "x", "guided_json": ' + nested(depth).encode() + b"}"
        with pytest.raises(RequestError) as caught:
            parse("completions", body)
        assert caught.value.status == 400
    assert form(guided_json={"const": "[" * 1000 + '\\"' + "{" * 1000}) is not None


def test_a_text_that_never_ends_keeps_nobody_waiting() -> None:
    """As long as a schema may be, with a quote in every other place: milliseconds, where a look from each quote to the
    end would take several seconds."""
    body = json.dumps({"prompt": "x", "guided_json": '"' + '\\"' * 16_000}).encode()
    began = time.process_time()
    with pytest.raises(RequestError):
        parse("completions", body)
    assert time.process_time() - began < 1.0


def test_a_form_counts_as_part_of_the_message() -> None:
    """Its bytes are those of the request."""
    plain, held = (
        parse("completions", json.dumps({"prompt": "x", **more}).encode()).most_bytes(0)
        for more in ({}, {"guided_regex": "a" * 999})
    )
    assert held == plain + 999


async def test_a_form_is_refused_where_an_agent_cannot_hold_it(gateway: Any, connected: Any) -> None:
    """Any of them might get it; the error says what to leave out."""
    able, unable = ServedModel("m", 10, 1, grammars=True), ServedModel("m", 10, 1)
    agents = [AgentRecord(str(at), "a", (model,), 1) for at, model in enumerate((able, unable, able))]
    assert [model.grammars for model in models_served(agents)] == [False]
    assert [model.grammars for model in models_served(agents[2:])] == [True]
    async with connected(gateway, models=(unable,)):
        body = {"prompt": "x", "structured_outputs": {"regex": "a"}}
        reply = await gateway.http.post("/v1/completions", json=body)
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert (error["param"], error["code"]) == ("structured_outputs.regex", "unsupported_value")
