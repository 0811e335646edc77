"""The grammars of answers that are to call tools: what may be said under them, in each format, and what may not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from checkpoints import DEMO
from llguidance import LLMatcher
from transformers import AutoTokenizer

from device_agent.answering.dialect.answer_form import answer_form
from device_agent.answering.dialect.call_formats import (
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    DEEPSEEK_V32,
    GLM45,
    HERMES,
    KIMI_K2,
    LLAMA3,
    MINIMAX_M2,
    MISTRAL,
    MISTRAL_NAMED,
    QWEN3_CODER,
    CallFormat,
)
from device_agent.answering.dialect.dialect import Dialect
from device_agent.answering.dialect.written_calls import written_calls
from device_agent.answering.form_limits import BESIDE, MOST
from device_agent.answering.grammars import Grammars
from device_agent.answering.tokenizer import Tokenizer
from wire.errors import Code, SessionFailed
from wire.request_messages import Calling, ChatTurn, Generate, Grammar, Rendering, Tool

BY_JSON = [HERMES, LLAMA3, MISTRAL, MISTRAL_NAMED, DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2]
TAGGED = [QWEN3_CODER, GLM45, MINIMAX_M2, DEEPSEEK_V32]
FORMATS = [*BY_JSON, *TAGGED]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
STRICT = Tool("weather", "", json.dumps(SCHEMA), True, "tools[0].function.parameters")
LOOSE = Tool("time", "", "", False, "tools[1].function.parameters")
ASKED = Grammar("json", '{"properties":{"answer":{"type":"integer"}},"required":["answer"]}', "response_format")
ANSWER, GOOD, BAD = '{"answer":3}', '{"city":"Oslo","days":2}', '{"days":2}'
SPECIAL = sorted({"<think>", "</think>"}.union(*(format.marks for format in FORMATS)))


@pytest.fixture(scope="module", params=[False, True], ids=["letters", "tokens"])
def known(request: pytest.FixtureRequest) -> Iterator[tuple[Tokenizer, Grammars]]:
    """The demo model's tokenizer, its marks written in letters or tokens of their own."""
    raw = AutoTokenizer.from_pretrained(DEMO)
    if request.param:
        raw.add_tokens(SPECIAL, special_tokens=True)
    tokenizer = Tokenizer(raw, frozenset([2]))
    grammars = Grammars.of(tokenizer, len(raw))
    assert grammars is not None
    yield tokenizer, grammars
    grammars.stop()


def ask(calling: Calling | None, asked: Grammar | None = None, *tools: Tool) -> Generate:
    """A request with these tools."""
    told = Rendering(tools=list(tools or (STRICT, LOOSE)))
    return Generate(1, "", "", [ChatTurn("user", "Hi")], rendering=told, calling=calling, thoughts=True, grammar=asked)


def sayable(
    known: tuple[Tokenizer, Grammars], dialect: Dialect, request: Generate, text: str, ending: str = ""
) -> bool:
    """Whether an answer may be this and end there."""
    form = answer_form(dialect, request, ending)
    if form is None:
        return True
    tokenizer, grammars = known
    matcher = LLMatcher(grammars._tokens, form.made(grammars._token_of), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.rendered(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def written(format: CallFormat, *calls: tuple[str, str]) -> str:
    """Calls as the format has them."""
    return written_calls(format, calls)


@pytest.mark.parametrize(
    "thinks", [pytest.param(False, id=""), pytest.param(True, id="thinks", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name + format.lead[:1])
def test_forced_calls_are_all_that_is_said(known: Any, format: CallFormat, thinks: bool) -> None:
    """Of tools that there are, with arguments that their schemas have; as many as may be; behind thoughts, if any."""
    dialect = Dialect(format, calls=True, tells=True, thinks=thinks)
    one, other = written(format, ("weather", GOOD)), written(format, ("time", "{}"))
    two = written(format, ("weather", GOOD), ("time", "{}"))
    bad = [written(format, ("weather", BAD)), written(format, ("nobody", "{}")), "Hello", f"Well: {one}", ANSWER, ""]
    for ending, before in (("", ""), ("", "<think>\nHm.\n</think>\n\n"), ("<think>\n", "Hm.\n</think>\n\n")):
        if before and not thinks:
            continue

        def may(calling: Calling, text: str, ending: str = ending, before: str = before) -> bool:
            return sayable(known, dialect, ask(calling, ASKED), before + text, ending)

        any_of = Calling(forced=True)
        assert may(any_of, one) and may(any_of, other) and may(any_of, two) is not format.single
        assert not any(may(any_of, text) for text in bad)
        single = Calling(forced=True, parallel=False)
        assert may(single, one) and may(single, other) and not may(single, two)
        named = Calling(forced=True, name="weather", parallel=False)
        assert may(named, one) and not may(named, other) and not may(named, two)


@pytest.mark.parametrize(
    "thinks", [pytest.param(False, id="", marks=pytest.mark.slow), pytest.param(True, id="thinks")]
)
@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name + format.lead[:1])
def test_strict_tools_are_held_to_their_schemas_and_text_is_free(known: Any, format: CallFormat, thinks: bool) -> None:
    """Where the model calls as it likes: any text, and no call that a strict tool's schema does not have."""
    dialect, auto = Dialect(format, calls=True, tells=True, thinks=thinks), ask(Calling())
    one, bad = written(format, ("weather", GOOD)), written(format, ("weather", BAD))
    good = ["", "Hello {world}!\n", "a < b", one, written(format, ("time", '{"any":1}')), ANSWER]
    good += [] if format.bare else [f"Well:\n{one}\n\nAnd: {one}"]
    for ending, before in (("", ""), ("", "<think>\nHm.\n</think>\n\n"), ("<think>\n", "Hm.\n</think>\n\n")):
        if before and not thinks:
            continue
        assert all(sayable(known, dialect, auto, before + text, ending) for text in good)
        assert not any(
            sayable(known, dialect, auto, before + text, ending) for text in (bad, bad.replace("weather", "x"))
        )


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name + format.lead[:1])
def test_a_text_in_a_form_or_calls(known: Any, format: CallFormat) -> None:
    """Where both may be: the text is of its form, or there are calls; where the model cannot call it is the text."""
    dialect, auto = Dialect(format, calls=True, tells=True), ask(Calling(), ASKED)
    call = written(format, ("weather", GOOD))
    call = call.replace('": ', '":').replace(', "', ',"') if format.bare else call
    assert sayable(known, dialect, auto, ANSWER) and sayable(known, dialect, auto, call)
    assert not sayable(known, dialect, auto, "Hello") and not sayable(
        known, dialect, auto, call.replace("city", "town")
    )
    assert not sayable(known, Dialect(format), auto, call) and sayable(known, Dialect(format), auto, ANSWER)


def test_what_is_free_has_no_form() -> None:
    """Without a strict tool, and where nothing that is said would be read as a call."""
    assert answer_form(Dialect(calls=True), ask(Calling(), None, LOOSE), "") is None
    assert (
        answer_form(Dialect(), ask(Calling()), "") is None and answer_form(Dialect(calls=True), ask(None), "") is None
    )
    held = answer_form(Dialect(calls=True), ask(Calling()), "")
    assert held is not None and held.may_be_left


def tool(schema: Any, at: int = 0, strict: bool = False) -> Tool:
    """A tool whose arguments have this schema."""
    return Tool(f"t{at}", "", json.dumps({"type": "object"} | schema), strict, f"tools[{at}].function.parameters")


async def refused(grammars: Grammars, *tools: Tool) -> str | None:
    """The member at fault where a call of one of these cannot be forced."""
    form = answer_form(Dialect(), ask(Calling(forced=True), None, *tools), "")
    assert form is not None
    try:
        await grammars.compiled(form, "")
    except SessionFailed as failure:
        assert failure.code is Code.INVALID_REQUEST
        return failure.param
    return None


async def test_a_schema_that_cannot_be_held_says_where(known: Any) -> None:
    """The tool and the part of its schema; what llguidance does not know limits nothing where a tool is not strict."""
    grammars, good = known[1], tool({"properties": {"a": {"type": "string"}}})
    bad = {"properties": {"a": {"items": {"type": "objekt"}}}}
    unknown = {"properties": {"a": {"type": "array", "uniqueItems": True}}}
    assert await refused(grammars, good, tool(bad, 1)) == "tools[1].function.parameters.properties.a.items"
    assert await refused(grammars, good, tool(unknown, 1)) is None
    assert await refused(grammars, good, tool(unknown, 1, strict=True)) == "tools[1].function.parameters.properties.a"
    assert await refused(grammars, tool({"properties": {"a": {"type": "string", "pattern": "("}}})) is not None


async def test_schemas_that_explode_are_refused(known: Any) -> None:
    """Each by its own bounds, and all together by theirs; 128 ordinary ones are compiled."""
    grammars = known[1]
    large: dict[str, Any] = {"properties": {f"p{at}": {} for at in range(MOST["properties"])}}
    assert await refused(grammars, tool({"properties": {f"p{at}": {} for at in range(501)}})) is not None
    many = [tool({"properties": {f"p{at}_{n}": {} for n in range(MOST["properties"])}}, at) for at in range(BESIDE + 1)]
    assert await refused(grammars, *many) == "tool_choice"
    usual = [tool({"properties": {f"p{n}": {"type": "string"} for n in range(8)}}, at) for at in range(128)]
    assert await refused(grammars, *usual) is None and await refused(grammars, tool(large)) is None


PROPERTIES: dict[str, Any] = {
    "text": {"type": "string", "description": "Any."},
    "word": {"enum": ["a", "ab", "c\nd"]},
    "maybe": {"anyOf": [{"const": "x"}, {"type": "null"}]},
    "count": {"$ref": "#/$defs/count"},
    "plain": {"type": "integer"},
    "deep": {"type": "boolean"},
    "list": {"type": "array", "items": {"$ref": "#/$defs/count"}},
}
VALUED = {
    "type": "object",
    "properties": PROPERTIES,
    "$defs": {"count": {"type": "integer", "minimum": 3, "maximum": 5}},
}
HELD: dict[str, tuple[dict[str, Any], bool]] = {
    "none": ({}, True),
    "texts": ({"text": 'Anything <b> "here"\n\n\\ é', "word": "ab"}, True),
    "another word": ({"word": "abc"}, False),
    "a word of two lines": ({"word": "c\nd"}, True),
    "nothing": ({"maybe": None}, True),
    "no other text": ({"maybe": "y"}, False),
    "numbers": ({"count": 4, "plain": -120, "deep": True}, True),
    "a number out of bounds": ({"count": 6}, False),
    "a number too many": ({"list": [7]}, False),
    "a list": ({"list": [3, 4]}, True),
    "no such argument": ({"other": 1}, False),
    "another order": ({"plain": 1, "text": "x"}, False),
    "no integer": ({"plain": 1.5}, False),
}


@pytest.mark.parametrize("format", TAGGED, ids=lambda format: format.name)
@pytest.mark.parametrize(("arguments", "wanted"), HELD.values(), ids=HELD.keys())
def test_values_between_tags_are_held_to_their_schemas(
    known: Any, format: CallFormat, arguments: dict[str, Any], wanted: bool
) -> None:
    """Texts, the few that there may be, and JSON; in the schema's order; all of them at will here."""
    asked = ask(Calling(forced=True), None, tool(VALUED, strict=True))
    text = written(format, ("t0", json.dumps(arguments, separators=(",", ":"))))
    text = text.replace("[3, 4]", "[3,4]")
    assert sayable(known, Dialect(format, calls=True, tells=True), asked, text) is wanted


@pytest.mark.parametrize("format", TAGGED, ids=lambda format: format.name)
def test_a_tool_without_a_schema_takes_any_argument(known: Any, format: CallFormat) -> None:
    """As texts, a few of them; one that says that it takes none has none."""
    dialect = Dialect(format, calls=True, tells=True)
    asked = ask(Calling(forced=True), None, tool({}), LOOSE)
    assert sayable(known, dialect, asked, written(format, ("t0", '{"a":"x\\ny","b_2":"[1]"}')))
    assert not sayable(known, dialect, asked, written(format, ("time", '{"a":"x"}')))
    assert not sayable(known, dialect, asked, written(format, ("t0", json.dumps({f"k{at}": "" for at in range(17)}))))


@pytest.mark.parametrize("format", TAGGED, ids=lambda format: format.name)
async def test_what_cannot_be_held_between_tags_is_refused_where_it_is_strict(known: Any, format: CallFormat) -> None:
    """Texts of a pattern or length, which are free otherwise; names and values that have the tags themselves."""
    assert format.tags is not None
    limited = {"properties": {"a": {"type": "string", "maxLength": 3}}}
    named: dict[str, Any] = {"properties": {"a>b": {}}}
    valued: dict[str, Any] = {"properties": {"a": {"enum": [f"x{format.tags.close}"]}}}

    async def refusal(schema: Any, strict: bool) -> str | None:
        form = answer_form(Dialect(format, calls=True), ask(Calling(forced=True), None, tool(schema, 0, strict)), "")
        assert form is not None
        try:
            await known[1].compiled(form, "")
        except SessionFailed as failure:
            assert (failure.code, failure.param) == (Code.INVALID_REQUEST, "tool_choice")
            return str(failure)
        return None

    assert await refusal(limited, False) is None
    assert "'strict'" in (await refusal(limited, True) or "")
    for schema in (named, valued):
        assert "cannot write" in (await refusal(schema, False) or "")


FORGOTTEN = [QWEN3_CODER, DEEPSEEK_V3, DEEPSEEK_V31, DEEPSEEK_V32, KIMI_K2, MINIMAX_M2]


@pytest.mark.parametrize("format", FORGOTTEN, ids=lambda format: format.name)
def test_a_call_whose_first_mark_is_forgotten_is_held_too(known: Any, format: CallFormat) -> None:
    """It would be read as a call, so a strict tool's schema holds in it."""
    dialect, auto = Dialect(format, calls=True, tells=True), ask(Calling())
    for arguments, wanted in ((GOOD, True), (BAD, False)):
        text = written(format, ("weather", arguments))
        begun = text[text.index(format.also) :]
        assert sayable(known, dialect, auto, f"Well: {begun}") is wanted
