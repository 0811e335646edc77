"""What a load asks, from its own sentences or a file, and the events of what it gets."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bench.events import MAX_LINE_BYTES, Events, NoStream
from service.bench.prompts import BadPrompts, drawn, read


def test_drawn_prompts_differ_and_have_their_length() -> None:
    """None is the begin of another, so that a server's cache of prompts brings nothing; the same for the same seed."""
    texts = [each.messages[0]["content"] for each in islice(drawn(40, seed=3), 200)]
    assert all(40 <= len(text.split()) <= 80 for text in texts)
    assert len({" ".join(text.split()[:30]) for text in texts}) > 190
    assert texts == [each.messages[0]["content"] for each in islice(drawn(40, seed=3), 200)]
    assert texts != [each.messages[0]["content"] for each in islice(drawn(40, seed=4), 200)]


def test_a_file_has_text_or_json_lines(tmp_path: Path) -> None:
    """In its order, and again from the begin."""
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    lines = ["Plain text.", "", json.dumps({"prompt": "One", "max_tokens": 7, "id": 3}), json.dumps({"text": "Two"})]
    path = tmp_path / "prompts"
    path.write_text("\n".join([*lines, json.dumps({"messages": turns}), json.dumps("Three")]), encoding="utf-8")
    found = list(islice(read(str(path)), 6))
    said = [each.messages[-1]["content"] for each in found]
    assert said == ["Plain text.", "One", "Two", "Hi", "Three", "Plain text."]
    assert found[3].messages == turns and [each.max_tokens for each in found[:2]] == [None, 7]


def test_what_ends_a_line_is_one_byte(tmp_path: Path) -> None:
    """Other ends of lines that Unicode knows stay in their text, a mark of the byte order goes, and who speaks at the
    begin of a line is no JSON."""
    said = ["One\u2028and\x85more.", '"Wait," she said.', "Windows"]
    path = tmp_path / "prompts"
    path.write_bytes(("\ufeff" + json.dumps(said[0], ensure_ascii=False) + f"\n{said[1]}\n{said[2]}\r\n").encode())
    assert [each.messages[0]["content"] for each in islice(read(str(path)), 3)] == said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n \n", "has no prompts"),
        ('Fine.\n{"prompt": 3}', "line 2"),
        ('{"promt": "x"}', 'a line is text, or JSON with "prompt"'),
        ('{"messages": []}', "line 1"),
        ('{"prompt": "x", "max_tokens": 0}', "line 1"),
        ('{"prompt": "x"', "line 1"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_its_line(tmp_path: Path, text: str, words: str) -> None:
    """Before anything is sent."""
    path = tmp_path / "prompts"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadPrompts, match=words):
        read(str(path))
    with pytest.raises(BadPrompts, match="cannot be read"):
        read(str(tmp_path / "none"))


def event(**value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\r\n\r\n"


STREAM = b"".join(
    [
        b": keep-alive\n\n",
        event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]),
        event(choices=[{"index": 0, "delta": {"content": "Grüße"}}], extra=[1]),
        event(choices=[{"index": 0, "delta": {"reasoning_content": "Hm"}}]),
        event(choices=[{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]),
        event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]),
        event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}),
        b"data: [DONE]\n\n",
    ]
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    """Three say something, whatever of them comes at once."""
    events = Events()
    places = [0, *sorted(cuts), len(STREAM)]
    said = sum(events.take(STREAM[a:b]) for a, b in pairwise(places))
    assert (said, events.prompt_tokens, events.tokens, events.finished) == (3, 5, 9, True)
    assert events.error is None


def test_an_error_in_a_stream_is_one() -> None:
    """By OpenAI's fields, or whatever stands there."""
    for error, name in (({"code": "upstream_lost", "message": "gone"}, "upstream_lost"), ("gone", ""), ({}, "")):
        events = Events()
        events.take(event(error=error))
        assert events.error is not None and events.error[0] == name and not events.finished


@pytest.mark.parametrize("data", [b"data: {\n", b"data: []\n", b'data: {"choices": 3}\n', b"x" * (MAX_LINE_BYTES + 1)])
def test_what_is_no_stream_is_refused(data: bytes) -> None:
    """And nothing of it is kept without end."""
    with pytest.raises(NoStream):
        Events().take(data)
