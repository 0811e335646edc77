"""Shapes of replies: events in, objects out."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.answer import Complete
from gateway.delivery import events_of
from gateway.errors import internal
from gateway.likelihoods import completion_logprobs, content_logprobs
from gateway.replies import ChatShape, CompletionShape
from gateway.reply_schema import Heading
from wire.request_messages import Alternative, Delta, Finished, TokenLogprob

HEAD = Heading("id", 1, "m")


def plain(objects: Any) -> Any:
    return [msgspec.to_builtins(each) for each in objects]


def token(text: str, logprob: float = -1.0) -> TokenLogprob:
    return TokenLogprob(Alternative(text, logprob, text.encode()), [])


def test_the_log_probabilities_of_held_text_come_with_the_next_text() -> None:
    """No chunk without text, no token without its log-probability."""
    shape = ChatShape(HEAD, 1, logprobs=True)
    out = shape.chunks(
        [Delta(1, 0, "", 1, [token("\ufffd")]), Delta(1, 0, "é", 1, [token("é")]), Delta(1, 0, "", 1, [token("x")]),
         Finished(1, 0, "stop")]
    )  # fmt: skip
    choices = [chunk.choices[0] for chunk in out]
    assert [choice.delta.content for choice in choices] == ["é", None]
    told = [choice["logprobs"]["content"] for choice in plain(choices)]
    assert [[each["token"] for each in some] for some in told] == [["\ufffd", "é"], ["x"]]


def test_offsets_of_a_streamed_completion_go_on() -> None:
    """Over chunks, with an echoed prompt before the first token."""
    shape = CompletionShape(HEAD, 1, logprobs=True)
    out = shape.chunks([Delta(1, 0, "Say ", 0), Delta(1, 0, "ab", 1, [token("ab")]), Delta(1, 0, "c", 1, [token("c")])])
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in plain(out)] == [[], [4], [6]]


def test_offsets_count_from_where_the_text_of_a_delta_begins() -> None:
    """Or from where that of its tokens does, behind what was held of others; and they go no further than its end:
    tokens are longer when a stop text was cut off or a character came in pieces."""
    rows = completion_logprobs([token("abc"), token("STOP"), token("x")], 0, 3)
    assert [offset for *_, offset in rows] == [0, 3, 3]
    pieces = [token("\ufffd") for _ in range(4)]
    cases: list[tuple[list[tuple[str, list[TokenLogprob] | None, int]], list[int]]] = [
        ([("ab", [token("ab")], 0), ("😀", pieces, 0), ("cd", [token("cd")], 0)], [0, 2, 3, 3, 3, 3]),
        ([("Say: ", None, 0), ("hello ", [token("hello "), token("world")], 0)], [5, 11]),
        ([("xyz", [token("xyz")], 0), (" ", [token(" S")], 0), ("Sx", [token("x")], 1)], [0, 3, 5]),
    ]
    for deltas, offsets in cases:
        events: Any = [Delta(1, 0, text, len(tokens or ()), tokens, held=held) for text, tokens, held in deltas]
        streamed = plain(CompletionShape(HEAD, 1, logprobs=True).chunks(events))
        assert [at for chunk in streamed for at in chunk["choices"][0]["logprobs"]["text_offset"]] == offsets
        shape = CompletionShape(HEAD, 1, logprobs=True)
        shape.absorb(events)
        assert plain([shape.whole()])[0]["choices"][0]["logprobs"]["text_offset"] == offsets


def test_tokens_that_are_no_whole_characters_are_told_apart() -> None:
    """By their bytes, as OpenAI names them: as text all of them look alike."""
    pieces = [Alternative("\ufffd", -0.5 - at, raw) for at, raw in enumerate((b"\xe2", b"\xe3", b"\x80\x9c"))]
    told = completion_logprobs([TokenLogprob(pieces[0], pieces), token("\ufffd")], 0, 2)
    assert [(name, offset) for name, _, _, offset in told] == [("bytes:\\xe2", 0), ("\ufffd", 1)]
    assert told[0][2] == {"bytes:\\xe2": -0.5, "bytes:\\xe3": -1.5, "bytes:\\x80\\x9c": -2.5}
    same = [Alternative("x", at, b"x") for at in (-1.0, -3.0)]
    assert completion_logprobs([TokenLogprob(same[1], same)], 0, 1)[0][2] == {"x": -1.0}


def test_impossible_tokens_are_sayable() -> None:
    """JSON has neither infinity nor NaN."""
    for value in (float("-inf"), float("nan"), float("inf")):
        assert content_logprobs([token("x", value)])[0].logprob == -9999.0


events = st.lists(
    st.one_of(
        st.builds(Delta, st.just(1), st.integers(0, 2), st.text(max_size=6), st.integers(0, 3)),
        st.builds(Finished, st.just(1), st.integers(0, 2), st.sampled_from(["stop", "length"])),
    ),
    max_size=12,
).map(lambda some: [*some, Complete(3, 4)])


@pytest.mark.parametrize("shape_class", [ChatShape, CompletionShape])
@given(some=events, usage=st.booleans())
def test_a_stream_says_what_the_whole_says(shape_class: Any, some: Any, usage: Any) -> None:
    """Any events: every line is an event of JSON, the texts add up, no empty text in between, one usage at the end."""
    shape = shape_class(Heading("id", 1, "m", usage), 3, logprobs=False)
    data = events_of([*shape.opening(range(3)), *shape.chunks(some)]).decode()
    lines = data.split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") and len(line.splitlines()) >= 1 and "\n" not in line for line in lines)
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    texts = ["", "", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            new = choice["delta"].get("content", "") if shape_class is ChatShape else choice["text"]
            opening = shape_class is ChatShape and "role" in choice["delta"]
            assert new or opening or choice["finish_reason"]
            texts[choice["index"]] += new
        assert ("usage" in chunk) is usage
    shape.absorb(some)
    whole = plain([shape.whole()])[0]
    said = [each["message"]["content"] if shape_class is ChatShape else each["text"] for each in whole["choices"]]
    assert said == texts
    assert whole["usage"]["total_tokens"] == 7
    assert [chunk["choices"] for chunk in chunks].count([]) == int(usage)


def test_an_error_is_an_event() -> None:
    """In OpenAI's shape."""
    assert json.loads(events_of([internal().reply])[6:])["error"].keys() == {"message", "type", "param", "code"}
