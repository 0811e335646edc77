"""Thoughts between tags at an answer's beginning."""

from __future__ import annotations

import pytest

from device_agent.answering.dialect.pieces import Piece, Said, Thought, joined
from device_agent.answering.dialect.thoughts import Thoughts, begun_in

CASES: dict[str, tuple[bool, str, list[Piece]]] = {
    "thoughts": (False, "<think>\nHm. \n\nYes.\n</think>\n\nIt is 4.\n", [Thought("Hm. \n\nYes."), Said("It is 4.\n")]),
    "begun by the prompt": (True, "\nHm.\n</think>\n\nIt is 4.", [Thought("Hm."), Said("It is 4.")]),
    "begun twice": (True, "<think>Hm.</think>4", [Thought("<think>Hm."), Said("4")]),
    "none": (False, " It is <b>4</b>. ", [Said(" It is <b>4</b>. ")]),
    "empty": (False, "<think>\n\n</think>\n\n4", [Said("4")]),
    "never ended": (False, "<think>Hm, well \n", [Thought("Hm, well")]),
    "half a tag": (False, "<think>Hm</th", [Thought("Hm</th")]),
    "half a tag alone": (False, " <thi", [Said(" <thi")]),
    "tags within": (False, "Write <think>x</think>.", [Said("Write <think>x</think>.")]),
    "again": (False, "<think>a</think>b<think>c</think>", [Thought("a"), Said("b<think>c</think>")]),
    "nothing": (False, "", []),
    "blanks alone": (False, " \n", [Said(" \n")]),
}


@pytest.mark.parametrize(("begun", "text", "told"), CASES.values(), ids=CASES.keys())
def test_thoughts_are_told_apart(begun: bool, text: str, told: list[Piece]) -> None:
    """At once, and letter by letter; blanks around them are left out, what is said otherwise stays as it is."""
    for pieces in ([text], list(text)):
        thoughts = Thoughts(begun=begun)
        found = [piece for each in pieces for piece in thoughts.feed(each)]
        assert joined(found + thoughts.end()) == told


def test_thoughts_are_told_as_they_come() -> None:
    """Only what may be the tag's beginning, and blanks before it, wait."""
    thoughts = Thoughts(begun=False)
    assert thoughts.feed("<thi") == [] and thoughts.feed("nk>\nHm") == [Thought("Hm")]
    assert thoughts.feed(", a < b \n</") == [Thought(", a < b")]
    assert thoughts.feed("c>") == [Thought(" \n</c>")]


def test_a_prompt_may_begin_them() -> None:
    """With the tag at its end, and nothing else there."""
    assert begun_in("<|assistant|><think>\n") and begun_in("<think>")
    assert not begun_in("<think>\n\n</think>\n\n") and not begun_in("") and not begun_in("<think> well")
