"""Calls of tools in an answer's text: every format, however the text comes in, and what is no call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.answering.dialect.call_formats import (
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    HERMES,
    KIMI_K2,
    LLAMA3,
    MISTRAL,
    MISTRAL_NAMED,
    CallFormat,
)
from device_agent.answering.dialect.call_parser import CallParser
from device_agent.answering.dialect.calls_in_text import MOST_CALLS
from device_agent.answering.dialect.pieces import Argued, Begun, Piece, Said, Thought, joined
from device_agent.answering.dialect.reader import AnswerReader
from device_agent.answering.dialect.thoughts import Thoughts
from device_agent.answering.dialect.written_calls import written_calls

FORMATS = [HERMES, LLAMA3, MISTRAL, MISTRAL_NAMED, DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2]
CALLS, CALL, SEP, CALLED, ALL_CALLED = DEEPSEEK_V3.marks
SECTION, BEGUN, ARGUMENT, ENDED, ALL_ENDED = KIMI_K2.marks
NAMES = {"find", "say-it"}
WORDS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]a1", "<|python_tag|>", "<think>", "</think>"),
    *("\n", " ", "{", "}", "}}", "[", "]", ", ", ";", '"', "\\", "<", "<tool", "hello", "find", '{"a": 1}', "{}"),
    *('{"name": "find", "arguments": ', '{"name": "find", "parameters": ', '{"name":"nobody", "arguments": '),
    *(CALLS, CALL, SEP, CALLED, ALL_CALLED, "function", "```json\n", "```"),
    *(SECTION, BEGUN, ARGUMENT, ENDED, ALL_ENDED, "functions.find:0", f"{BEGUN}functions.find:1{ARGUMENT}{{"),
    *('{"arguments": {"q": 2}, "name": "find"}', '{"name": "say-it"}', '{"type": "function", "name": "find", '),
    *('"parameters": ', '{"a": "} </tool_call> \\" {"}', ', "id": "x1"}', '{"foo": 1}'),
]  # fmt: skip


def read(format: CallFormat, pieces: Sequence[str], *, most: int = MOST_CALLS, begun: bool = False) -> list[Piece]:
    """What an answer that comes in these pieces says."""
    ids = count()
    parser = CallParser(format, NAMES, lambda: f"id{next(ids)}", most)
    reader, told = AnswerReader(Thoughts(begun=begun), parser), list[Piece]()
    for each in pieces:
        told += reader.feed(each)
    return joined(told + reader.end())


@st.composite
def cut_texts(draw: st.DrawFn) -> list[str]:
    """Texts of what formats are made of, in pieces."""
    text = "".join(draw(st.lists(st.sampled_from(WORDS), max_size=9)))
    places = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


@given(cut_texts(), st.sampled_from(FORMATS), st.booleans(), st.sampled_from([1, MOST_CALLS]))
def test_how_a_text_is_cut_changes_nothing(pieces: list[str], format: CallFormat, begun: bool, most: int) -> None:
    """The same thoughts, text and calls as of the whole text, letter by letter too."""
    whole = read(format, ["".join(pieces)], most=most, begun=begun)
    assert read(format, pieces, most=most, begun=begun) == whole
    assert read(format, list("".join(pieces)), most=most, begun=begun) == whole


@given(cut_texts(), st.sampled_from(FORMATS))
def test_a_text_without_calls_is_said_as_it_is(pieces: list[str], format: CallFormat) -> None:
    """Where nothing was called every letter is said, broken calls and tags included."""
    parser = CallParser(format, NAMES, lambda: "id")
    told = [piece for each in pieces for piece in parser.feed(each)] + parser.end()
    assert sum(isinstance(piece, Begun) for piece in told) == parser.begun
    if not parser.begun:
        assert "".join(piece.text for piece in told if isinstance(piece, Said)) == "".join(pieces)


def written(format: CallFormat, *calls: tuple[str, str]) -> str:
    """Calls as the format has them."""
    return written_calls(format, calls)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.first + format.lead)
def test_calls_are_told_as_they_are_written(format: CallFormat) -> None:
    """One, several, with anything in a text of theirs; what is said before them, if they need not begin the answer."""
    hard = json.dumps({"a": 'x"}] </tool_call> [TOOL_CALLS] {', "b": [{"c": {}}]})
    text = written(format, ("find", hard), ("say-it", "{}"))
    calls = [Begun("id0", "find"), Argued(hard), Begun("id1", "say-it"), Argued("{}")]
    assert read(format, [text]) == calls
    assert read(format, list(f"\n{text}\n")) == calls
    before = text if not format.bare else f"{format.opener}{text}"
    assert read(format, [f"Let me look.\n\n{before}"]) == [Said("Let me look."), *calls]
    thought = [Thought("I have to find it."), *calls]
    assert read(format, [f"<think>\nI have to find it.\n</think>\n\n{text}"]) == thought


def test_calls_one_a_line_without_a_sign_between() -> None:
    """As some Llamas write them, cut anyhow; what is no call behind one is text."""
    calls = [Begun("id0", "find"), Argued('{"a": 1}'), Begun("id1", "say-it"), Argued("{}")]
    for between in ("\n", "", " \n "):
        text = f'{{"name": "find", "parameters": {{"a": 1}}}}{between}{{"name": "say-it", "parameters": {{}}}}'
        assert read(LLAMA3, [text]) == read(LLAMA3, list(text)) == calls
    assert read(LLAMA3, ['{"name": "find", "parameters": {}}\n{"x": 1}'])[2:] == [Said('{"x": 1}')]


def test_a_number_that_json_has_no_word_for_makes_no_call() -> None:
    """It would be told as a word that no client reads."""
    text = '<tool_call>{"arguments": {"a": 1e999}, "name": "find"}</tool_call>'
    assert read(HERMES, [text]) == [Said(text)]


MANNERS = {
    "the other order": (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "find"}</tool_call>', '{"a": 1}'),
    "JSON within JSON": (HERMES, '<tool_call>{"name": "find", "arguments": "{\\"a\\": 1}"}</tool_call>', '{"a": 1}'),
    "no arguments": (HERMES, '<tool_call>\n{"name": "find"}\n</tool_call>', "{}"),
    "never closed": (HERMES, '<tool_call>\n{"name": "find", "arguments": {"a": 1}', '{"a": 1}'),
    "cut off": (HERMES, '<tool_call>\n{"name": "find", "arguments": {"a": "x', '{"a": "x'),
    "a bracket too many": (HERMES, '<tool_call>{"name": "find", "arguments": {"a": 1}}}\n}</tool_call>', '{"a": 1}'),
    "a bracket too few": (HERMES, '<tool_call>{"name": "find", "arguments": {"a": 1}\n</tool_call>', '{"a": 1}'),
    "parameters": (HERMES, '<tool_call>{"name": "find", "parameters": {"a": 1}}</tool_call>', '{"a": 1}'),
    "a function": (LLAMA3, '{"type": "function", "name": "find", "parameters": {"a": 1}}', '{"a": 1}'),
    "a function within": (LLAMA3, '{"type": "function", "function": {"name": "find", "arguments": {}}}', "{}"),
    "behind its tag": (LLAMA3, '<|python_tag|>{"name": "find", "parameters": {"a": 1}}', '{"a": 1}'),
    "an id": (MISTRAL, '[TOOL_CALLS] [{"name": "find", "arguments": {"a": 1}, "id": "abcdefghi"}]', '{"a": 1}'),
    "no list": (MISTRAL, '[TOOL_CALLS]{"name": "find", "arguments": {"a": 1}}', '{"a": 1}'),
    "a name before": (MISTRAL, '[TOOL_CALLS]find{"a": 1}', '{"a": 1}'),
    "an id before": (MISTRAL_NAMED, '[TOOL_CALLS]find[CALL_ID]abcdefghi[ARGS]{"a": 1}', '{"a": 1}'),
    "the first mark forgotten": (DEEPSEEK_V3, f'{CALL}function{SEP}find\n```json\n{{"a": 1}}\n```{CALLED}', '{"a": 1}'),
    "another mark forgotten": (DEEPSEEK_V3, f'{CALLS}find{SEP}{{"a": 1}}{CALLED}{ALL_CALLED}', '{"a": 1}'),
    "no fence": (DEEPSEEK_V3, f'{CALLS}{CALL}function{SEP}find\n{{"a": 1}}{CALLED}{ALL_CALLED}', '{"a": 1}'),
    "another fence": (DEEPSEEK_V3, f'{CALLS}{CALL}function{SEP}find\n```\n{{"a": 1}}\n```{CALLED}', '{"a": 1}'),
    "as its older one": (DEEPSEEK_V31, f'{CALLS}{CALL}function{SEP}find\n```json\n{{"a": 1}}\n```{CALLED}', '{"a": 1}'),
    "cut in its arguments": (DEEPSEEK_V3, f'{CALLS}{CALL}function{SEP}find\n```json\n{{"a": "x', '{"a": "x'),
    "cut behind them": (DEEPSEEK_V31, f'{CALLS}{CALL}find{SEP}{{"a": 1}}<', '{"a": 1}'),
    "the section not begun": (KIMI_K2, f'{BEGUN}functions.find:3{ARGUMENT}{{"a": 1}}{ENDED}{ALL_ENDED}', '{"a": 1}'),
    "the section not ended": (KIMI_K2, f'{SECTION}{BEGUN}functions.find:0{ARGUMENT}{{"a": 1}}{ENDED}', '{"a": 1}'),
    "blanks beside marks": (
        KIMI_K2,
        f'{SECTION}\n{BEGUN} functions.find:0 {ARGUMENT}\n{{"a": 1}}\n{ENDED}\n{ALL_ENDED}',
        '{"a": 1}',
    ),
    "no kind": (KIMI_K2, f'{SECTION}{BEGUN}find:0{ARGUMENT}{{"a": 1}}{ENDED}{ALL_ENDED}', '{"a": 1}'),
}


@pytest.mark.parametrize(("format", "text", "arguments"), MANNERS.values(), ids=MANNERS.keys())
def test_models_do_not_write_as_they_were_told(format: CallFormat, text: str, arguments: str) -> None:
    """What is meant is understood, and nothing of it is said."""
    assert read(format, [text]) == [Begun("id0", "find"), Argued(arguments)]


NO_CALLS = {
    "an unknown tool": (HERMES, '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>'),
    "no JSON": (HERMES, "Write <tool_call> and </tool_call>."),
    "broken JSON": (HERMES, '<tool_call>{"name": "find", arguments: {}}</tool_call>'),
    "no object of arguments": (HERMES, '<tool_call>{"name": "find", "arguments": [1]}</tool_call>'),
    "not a number": (HERMES, '<tool_call>{"arguments": {"a": NaN}, "name": "find"}</tool_call>'),
    "very deep": (HERMES, '<tool_call>{"arguments": ' + "[" * 100_000 + "]" * 100_000 + ', "name": "find"}'),
    "an answer in JSON": (LLAMA3, '{"name": "Ann", "age": 7}'),
    "another one": (LLAMA3, '{"answer": {"name": "find", "parameters": {}}}'),
    "JSON behind text": (LLAMA3, 'It is {"name": "find", "parameters": {}}'),
    "Python": (LLAMA3, '<|python_tag|>find.call(query="x")'),
    "an empty list": (MISTRAL, "[TOOL_CALLS] []"),
    "no name": (MISTRAL, "[TOOL_CALLS] " + "find" * 100),
    "an unknown function": (DEEPSEEK_V3, f"{CALLS}{CALL}function{SEP}nobody\n```json\n{{}}\n```{CALLED}{ALL_CALLED}"),
    "no arguments at all": (DEEPSEEK_V3, f"{CALLS}{CALL}function{SEP}find{CALLED}{ALL_CALLED}"),
    "a list of them": (DEEPSEEK_V31, f"{CALLS}{CALL}find{SEP}[1]{CALLED}{ALL_CALLED}"),
    "a name that goes on": (DEEPSEEK_V31, f"{CALLS}{CALL}" + "find" * 100),
    "its tokens alone": (DEEPSEEK_V31, f"{CALLS}{ALL_CALLED}{SEP}"),
    "nobody's": (KIMI_K2, f"{SECTION}{BEGUN}functions.nobody:0{ARGUMENT}{{}}{ENDED}{ALL_ENDED}"),
    "no number": (KIMI_K2, f"{SECTION}{BEGUN}functions.find{ARGUMENT}{{}}{ENDED}{ALL_ENDED}"),
}


@pytest.mark.parametrize(("format", "text"), NO_CALLS.values(), ids=NO_CALLS.keys())
def test_what_is_no_call_stays_text(format: CallFormat, text: str) -> None:
    """Letter for letter."""
    assert read(format, [text]) == [Said(text)]


def test_good_calls_beside_bad_ones_are_told() -> None:
    """A broken one is said, the one behind it called; blanks around calls are left out, text behind them is not."""
    good, bad = written(HERMES, ("find", '{"a": 1}')), '<tool_call>\n{"name": "nobody"}\n</tool_call>'
    call = [Begun("id0", "find"), Argued('{"a": 1}')]
    assert read(HERMES, [f"{bad}\n{good}\n\nDone. \n"]) == [Said(bad), *call, Said("Done. \n")]
    assert read(HERMES, [f"<tool_call>{good}"]) == [Said("<tool_call>"), *call]
    two = '[TOOL_CALLS] [{"name": "find", "arguments": {"a": 1}}, {"name": "nobody"}]'
    assert read(MISTRAL, [two]) == [*call, Said(', {"name": "nobody"}]')]


def test_arguments_are_told_as_they_come() -> None:
    """A name is told before its arguments are complete, and each piece of these at once; half a tag is held back."""
    parser = CallParser(HERMES, NAMES, lambda: "id")
    assert parser.feed("Well <tool") == [Said("Well")]
    assert parser.feed('_call>\n{"name": "find", "arguments": ') == []
    assert parser.feed('{"ci') == [Begun("id", "find"), Argued('{"ci')]
    assert parser.feed('ty": "Par') == [Argued('ty": "Par')]
    assert parser.feed('is"}}\n</to') == [Argued('is"}')]
    assert parser.feed("ol_call>") == [] and parser.end() == []
    assert (parser.begun, parser.complete) == (1, 1)


def test_an_answer_ends_with_the_last_call_it_may_have() -> None:
    """As soon as its arguments are complete; what follows is dropped."""
    text = written(HERMES, ("find", "{}"), ("say-it", "{}"))
    assert read(HERMES, [text], most=1) == [Begun("id0", "find"), Argued("{}")]
    parser = CallParser(HERMES, NAMES, lambda: "id", 1)
    over = [parser.feed(letter) is not None and parser.over for letter in text]
    assert text[: over.index(True) + 1].endswith('"arguments": {}')
