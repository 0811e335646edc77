"""Calls whose arguments stand between tags, as Qwen3-Coder and GLM write them: values by their schemas, cut anyhow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.answering.dialect.argument_kinds import ALL, MOST_LOOKS, ArgumentKinds, as_json, kinds_of
from device_agent.answering.dialect.call_formats import DEEPSEEK_V32, GLM45, MINIMAX_M2, QWEN3_CODER, CallFormat
from device_agent.answering.dialect.calls_in_text import MOST_CALLS
from device_agent.answering.dialect.pieces import Argued, Begun, Piece, Said, Thought, joined
from device_agent.answering.dialect.reader import AnswerReader
from device_agent.answering.dialect.tagged_parser import MAX_KEY, TaggedParser
from device_agent.answering.dialect.thoughts import Thoughts
from device_agent.answering.dialect.written_calls import written_calls

FORMATS = [QWEN3_CODER, GLM45, MINIMAX_M2, DEEPSEEK_V32]
NAMED = pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
PROPERTIES: dict[str, Any] = {
    "q": {"type": "string"},
    "n": {"type": "integer"},
    "deep": {"type": "boolean"},
    "list": {"type": "array"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "level": {"$ref": "#/$defs/level"},
    "any": {},
}
SCHEMA = {"type": "object", "properties": PROPERTIES, "$defs": {"level": {"enum": ["low", "high"]}}}
TOOLS = {"find": json.dumps(SCHEMA), "say-it": ""}
[DSML] = DEEPSEEK_V32.marks
WORDS = [
    *("<tool_call>", "</tool_call>", "<function=", "find", "say-it", "nobody", ">", "</function>", "<parameter=q>"),
    *("<parameter=n>", "<parameter=", "</parameter>", "<arg_key>q</arg_key>", "<arg_key>n</arg_key>", "<arg_key>"),
    *("</arg_key>", "<arg_value>", "</arg_value>", "\n", " ", "12", "null", "x", '"', "\\", "é🙂", "<", "</", "{}"),
    *("<tool_call>\n<function=find>\n<parameter=q>\nOslo\n</parameter>\n</function>\n</tool_call>", "<think>"),
    *("<tool_call>find\n<arg_key>q</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>", "<function=find>"),
    *("<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="find">', "<invoke name=", "</invoke>", '">'),
    *('<parameter name="q">', '<parameter name="n">', '<parameter name="'),
    *(f"<{DSML}function_calls>", f'<{DSML}invoke name="find">', f"<{DSML}invoke name=", DSML, f"</{DSML}invoke>"),
    *(f'<{DSML}parameter name="q" string="true">', f'<{DSML}parameter name="any" string="false">'),
    f"</{DSML}parameter>",
    "</think>",
]  # fmt: skip


def read(
    format: CallFormat, pieces: Sequence[str], *, most: int = MOST_CALLS, begun: bool = False, whole: bool = True
) -> list[Piece]:
    """What an answer that comes in these pieces says."""
    ids = count()
    reader = AnswerReader(Thoughts(begun=begun), TaggedParser(format, TOOLS, lambda: f"id{next(ids)}", most))
    told = [piece for each in pieces for piece in reader.feed(each)]
    return joined(told + reader.end(whole=whole))


def called(told: Sequence[Piece]) -> list[tuple[str, Any]]:
    """The calls alone, with arguments that are JSON."""
    names = [piece.name for piece in told if isinstance(piece, Begun)]
    arguments = [json.loads(piece.text) for piece in told if isinstance(piece, Argued)]
    return list(zip(names, arguments, strict=True))


def cut(draw: st.DrawFn, text: str) -> list[str]:
    """A text in pieces."""
    places = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def cut_texts(draw: st.DrawFn) -> list[str]:
    """Texts of what formats are made of, in pieces."""
    return cut(draw, "".join(draw(st.lists(st.sampled_from(WORDS), max_size=14))))


@given(cut_texts(), st.sampled_from(FORMATS), st.booleans(), st.sampled_from([1, MOST_CALLS]))
def test_how_a_text_is_cut_changes_nothing(pieces: list[str], format: CallFormat, begun: bool, most: int) -> None:
    """The same thoughts, text and calls as of the whole text, letter by letter too."""
    whole = read(format, ["".join(pieces)], most=most, begun=begun)
    assert read(format, pieces, most=most, begun=begun) == whole
    assert read(format, list("".join(pieces)), most=most, begun=begun) == whole


@given(cut_texts(), st.sampled_from(FORMATS))
def test_a_text_without_calls_is_said_as_it_is(pieces: list[str], format: CallFormat) -> None:
    """Where nothing was called every letter is said, broken calls and tags included."""
    parser = TaggedParser(format, TOOLS, lambda: "id")
    told = [piece for each in pieces for piece in parser.feed(each)] + parser.end()
    if not parser.begun:
        assert "".join(piece.text for piece in told if isinstance(piece, Said)) == "".join(pieces)


TEXTS = st.text(st.sampled_from('ab\n <>/\\"{}é🙂1'), max_size=12)
VALUES = {
    "q": TEXTS,
    "n": st.integers(-(10**20), 10**20),
    "deep": st.booleans(),
    "list": st.lists(st.one_of(st.none(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS)),
    "maybe": st.one_of(st.none(), TEXTS.filter(lambda text: text.strip() not in ("null", ""))),
    "level": st.sampled_from(["low", "high"]),
}


@given(
    st.lists(st.fixed_dictionaries({}, optional=VALUES), min_size=1, max_size=3), st.sampled_from(FORMATS), st.data()
)
def test_what_is_written_is_read(calls: list[dict[str, Any]], format: CallFormat, data: st.DataObject) -> None:
    """Whatever the values are, by their schemas, however it comes; texts with their blanks and line ends."""
    text = written_calls(format, (("find", json.dumps(each)) for each in calls))
    pieces = data.draw(st.composite(cut)(text))
    assert called(read(format, pieces)) == [("find", each) for each in calls]


@NAMED
def test_calls_stand_beside_text_and_behind_thoughts(format: CallFormat) -> None:
    """Several, one without arguments; what is said before them is told, blanks beside them are not."""
    text = written_calls(format, [("find", '{"q": "a\\nb", "n": 3}'), ("say-it", "{}")])
    calls = [Begun("id0", "find"), Argued('{"q": "a\\nb", "n": 3}'), Begun("id1", "say-it"), Argued("{}")]
    assert read(format, [f"\n{text}\n"]) == calls
    assert read(format, [f"Let me look.\n\n{text}"]) == [Said("Let me look."), *calls]
    assert read(format, [f"<think>\nI have to.\n</think>\n\n{text}"]) == [Thought("I have to."), *calls]
    assert read(format, [text], most=1) == calls[:2]


QWEN = "<tool_call>\n<function=find>\n{}</function>\n</tool_call>"
V32 = (
    f'<{DSML}function_calls>\n<{DSML}invoke name="find">\n'
    f'<{DSML}parameter name="{{}}" string="{{}}">{{}}</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}function_calls>'
)
MANNERS = {
    "no first tag": (
        QWEN3_CODER,
        "<function=find>\n<parameter=q>\nx\n</parameter>\n</function>\n</tool_call>",
        {"q": "x"},
    ),
    "in one line": (QWEN3_CODER, QWEN.format("<parameter=q>x</parameter>"), {"q": "x"}),
    "Python's words": (QWEN3_CODER, QWEN.format("<parameter=deep>\nTrue\n</parameter>\n"), {"deep": True}),
    "a text of digits": (QWEN3_CODER, QWEN.format("<parameter=q>\n12\n</parameter>\n"), {"q": "12"}),
    "a number in a text": (QWEN3_CODER, QWEN.format("<parameter=any>\n12\n</parameter>\n"), {"any": 12}),
    "nothing": (QWEN3_CODER, QWEN.format("<parameter=maybe>\nnull\n</parameter>\n"), {"maybe": None}),
    "no number": (QWEN3_CODER, QWEN.format("<parameter=n>\nmany\n</parameter>\n"), {"n": "many"}),
    "not a number": (QWEN3_CODER, QWEN.format("<parameter=n>\nNaN\n</parameter>\n"), {"n": "NaN"}),
    "very deep": (QWEN3_CODER, QWEN.format("<parameter=list>\n" + "[" * 20_000 + "\n</parameter>\n"), None),
    "no such argument": (QWEN3_CODER, QWEN.format("<parameter=new>\n[1]\n</parameter>\n"), {"new": [1]}),
    "twice": (QWEN3_CODER, QWEN.format("<parameter=q>a</parameter><parameter=q>b</parameter>"), {"q": "a"}),
    "text between": (QWEN3_CODER, QWEN.format("so <b> <parameter=n>\n1\n</parameter> and"), {"n": 1}),
    "an empty one": (QWEN3_CODER, QWEN.format("<parameter=q>\n</parameter>\n"), {"q": ""}),
    "one tag too few": (QWEN3_CODER, QWEN.format("<parameter=n>1</parameter>").replace("</function>", ""), {"n": 1}),
    "never closed": (QWEN3_CODER, "<function=find><parameter=n>1</parameter><function=nobody>", {"n": 1}),
    "blanks": (GLM45, "<tool_call>find <arg_key>n</arg_key> <arg_value> 2 </arg_value> </tool_call>", {"n": 2}),
    "blanks in a text": (
        GLM45,
        "<tool_call>find<arg_key>q</arg_key><arg_value> x\n</arg_value></tool_call>",
        {"q": " x\n"},
    ),
    "JSON": (
        GLM45,
        '<tool_call>find\n<arg_key>list</arg_key>\n<arg_value>[{"a": "<"}]</arg_value>\n</tool_call>',
        {"list": [{"a": "<"}]},
    ),
    "all in one line": (
        MINIMAX_M2,
        '<minimax:tool_call><invoke name="find"><parameter name="q">x</parameter></invoke></minimax:tool_call>',
        {"q": "x"},
    ),
    "no first tag, as another": (
        MINIMAX_M2,
        '<invoke name="find">\n<parameter name="n">2</parameter>\n</invoke>',
        {"n": 2},
    ),
    "no quotes": (MINIMAX_M2, '<invoke name=find><parameter name="deep">true</parameter></invoke>', {"deep": True}),
    "a text, as it says": (DEEPSEEK_V32, V32.format("any", "true", "12"), {"any": "12"}),
    "JSON, as it says": (DEEPSEEK_V32, V32.format("any", "false", "12"), {"any": 12}),
    "a text in JSON": (DEEPSEEK_V32, V32.format("any", "false", '"12"'), {"any": "12"}),
    "no text, whatever it says": (DEEPSEEK_V32, V32.format("n", "true", "12"), {"n": 12}),
    "no JSON, whatever it says": (DEEPSEEK_V32, V32.format("q", "false", "12"), {"q": "12"}),
    "the next one begins": (
        GLM45,
        "<tool_call>find\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n<tool_call>nobody",
        {"n": 1},
    ),
}


@pytest.mark.parametrize(("format", "text", "arguments"), MANNERS.values(), ids=MANNERS.keys())
def test_models_do_not_write_as_they_were_told(format: CallFormat, text: str, arguments: Any) -> None:
    """What is meant is understood, and always told as JSON."""
    told = read(format, [text])
    assert read(format, list(text)) == told
    [(name, found)] = called(told)
    assert name == "find" and (found == arguments or (arguments is None and found == {"list": "[" * 20_000}))


NO_CALLS = {
    "an unknown tool": (QWEN3_CODER, "<tool_call>\n<function=nobody>\n</function>\n</tool_call>"),
    "a tag in a text": (QWEN3_CODER, "Write <tool_call> and </tool_call>, and <function= too."),
    "Hermes' way": (QWEN3_CODER, '<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call>'),
    "a long name": (QWEN3_CODER, f"<function={'x' * 300}>"),
    "another's way": (GLM45, "<tool_call>\n<function=find>\n</function>\n</tool_call>"),
    "another unknown tool": (MINIMAX_M2, '<minimax:tool_call>\n<invoke name="nobody">\n</invoke>\n'),
    "its own mark": (DEEPSEEK_V32, f"<{DSML} is its mark, <{DSML}invoke too."),
    "HTML": (MINIMAX_M2, 'Write <b> and <invoke name="find it"> there.'),
    "a name that is none": (GLM45, "<tool_call>find it</tool_call>"),
    "cut in its name": (GLM45, "<tool_call>fin"),
    "no arguments yet": (GLM45, "<tool_call>find\n"),
}


@pytest.mark.parametrize(("format", "text"), NO_CALLS.values(), ids=NO_CALLS.keys())
def test_what_is_no_call_stays_text(format: CallFormat, text: str) -> None:
    """Letter for letter."""
    assert read(format, [text]) == read(format, list(text)) == [Said(text)]


@NAMED
def test_an_answer_that_is_cut_off_tells_what_came(format: CallFormat) -> None:
    """Wherever it ends: pieces of what the whole would have told, and no half of a tag in a text."""
    text = written_calls(format, [("find", '{"q": "Oslo", "n": 12}')])
    for end in range(len(text)):
        told = read(format, [text[:end]], whole=False)
        arguments = "".join(piece.text for piece in told if isinstance(piece, Argued))
        assert '{"q": "Oslo", "n": 12}'.startswith(arguments)
        assert told[0] == Begun("id0", "find") if arguments else all(isinstance(each, Said) for each in told)


@NAMED
def test_a_call_that_the_model_leaves_open_is_ended(format: CallFormat) -> None:
    """Behind an argument: what it says is JSON, and the call counts. Not in the middle of one."""
    text = written_calls(format, [("find", '{"q": "Oslo", "n": 12}')])
    end = text.rindex(format.tags.close) + len(format.tags.close) if format.tags is not None else 0
    for behind in ("", "\n"):
        assert read(format, [text[:end] + behind]) == [Begun("id0", "find"), Argued('{"q": "Oslo", "n": 12}')]
    cut = "".join(piece.text for piece in read(format, [text[: end - 3]]) if isinstance(piece, Argued))
    assert not cut.endswith("}")


def test_texts_are_told_as_they_come_and_others_when_they_are_complete() -> None:
    """The name at once; of a text each piece, half a tag and a line end held back; a number once its tag closes."""
    parser = TaggedParser(QWEN3_CODER, TOOLS, lambda: "id")
    assert parser.feed("Well <tool") == [Said("Well")]
    assert parser.feed("_call>\n<function=find>") == [Begun("id", "find"), Argued("{")]
    assert parser.feed("\n<parameter=q>\nOs") == [Argued('"q": "Os')]
    assert parser.feed("lo\n</para") == [Argued("lo")]
    assert parser.feed("\n") == [Argued("\\n</para")]
    assert parser.feed("</parameter>\n<parameter=n>\n1") == [Argued('"')]
    assert parser.feed("2\n</parameter>") == [Argued(', "n": 12')]
    assert not parser.over and parser.feed("\n</function>") == [Argued("}")]
    assert parser.feed("\n</tool_call>") == parser.end() == [] and (parser.begun, parser.complete) == (1, 1)


def test_an_arguments_name_is_short() -> None:
    """A longer one is none: what it would be is left out, and the next is read."""
    for length in (MAX_KEY, MAX_KEY + 1):
        text = QWEN.format(f"<parameter={'k' * length}>1</parameter><parameter=n>2</parameter>")
        [(_, arguments)] = called(read(QWEN3_CODER, [text]))
        assert arguments == ({"k" * MAX_KEY: 1, "n": 2} if length == MAX_KEY else {"n": 2})


KINDS: dict[str, tuple[Any, set[str]]] = {
    "a type": ({"type": "integer"}, {"integer"}),
    "numbers may be integers": ({"type": "number"}, {"number", "integer"}),
    "types": ({"type": ["string", "null"]}, {"string", "null"}),
    "values": ({"enum": [1, None, "a", True]}, {"integer", "null", "string", "boolean"}),
    "one value": ({"const": 1.5}, {"number"}),
    "alternatives": ({"oneOf": [{"type": "object"}, {"enum": ["a"]}]}, {"object", "string"}),
    "all at once": ({"allOf": [{"type": ["string", "null"]}, {"type": ["null", "array"]}]}, {"null"}),
    "elsewhere": ({"$ref": "#/$defs/a"}, {"string"}),
    "nowhere": ({"$ref": "#/$defs/b"}, set(ALL)),
    "in a circle": ({"$ref": "#/$defs/c"}, set(ALL)),
    "nothing": ({}, set(ALL)),
    "no schema": (True, set(ALL)),
    "no type": ({"type": "objekt"}, set(ALL)),
    "wide and deep": ({"$ref": "#/$defs/d0"}, set(ALL)),
}
DEFS: dict[str, Any] = {"a": {"type": "string"}, "c": {"anyOf": [{"$ref": "#/$defs/c"}] * 3}}
DEFS |= {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 9} for at in range(9)}
assert MOST_LOOKS < 9**9


@pytest.mark.parametrize(("part", "wanted"), KINDS.values(), ids=KINDS.keys())
def test_a_schema_says_what_a_value_may_be(part: Any, wanted: set[str]) -> None:
    """By type, value, alternative and reference; anything where it does not say, or nobody can tell soon."""
    assert kinds_of(part, {"$defs": DEFS}) == wanted


@pytest.mark.parametrize("text", ["", "[]", "{", '{"properties": []}', '{"$ref": "#"}', "[" * 100_000])
def test_a_schema_that_says_nothing_allows_anything(text: str) -> None:
    """Broken ones too."""
    assert ArgumentKinds(text).of("a") == ALL


def test_numbers_keep_their_digits() -> None:
    """What is JSON already is told as it was written."""
    assert as_json("1.50", kinds_of({"type": "number"}, {})) == "1.50"
    assert as_json("9" * 5000, kinds_of({"type": "integer"}, {})) == json.dumps("9" * 5000)
    assert as_json('"\\ud800"', kinds_of({"type": "array"}, {})) == '"\\ud800"'
