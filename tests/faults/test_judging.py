"""What is held against invented answers, and noted of them."""

from __future__ import annotations

from typing import Any

import pytest
from faults import shapes
from faults.judging import judge
from faults.notes import taken
from faults.shapes import Asked
from streamed import Answer

TEXT = ["a", "b", "c"]
TIMES = [1.0, 2.0, 5.0]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Transformers says "abc"."""
    monkeypatch.setattr(shapes, "wanted", lambda *about: "abc")
    taken()
    return Asked("", ["plain"])


def answer(**changes: Any) -> dict[str, Answer]:
    """One that is right, but for these changes."""
    return {"plain": Answer(**{"pieces": TEXT, "times": TIMES, "tokens": 3, "done": True, **changes})}


def test_a_pause_is_noted(asked: Asked) -> None:
    """From the notice on; where no text came behind that there is none, which is not the same as none at all."""
    judge(asked, answer(), 1.5, "a fault", noticed_s=1.0)
    judge(asked, answer(), 1.5, "a fault", noticed_s=4.0)
    assert [each.recovered_s for each in taken()] == [2.5, None]


def test_a_fault_behind_the_answer_proves_nothing(asked: Asked) -> None:
    """However right all of it is."""
    with pytest.raises(AssertionError, match="over before"):
        judge(asked, answer(), 5.5, "a fault")
    [found] = taken()
    assert found.recovered_s is None


@pytest.mark.parametrize(
    "changes",
    [{"pieces": ["a", "x", "c"]}, {"done": False}, {"done": False, "error": {"message": "gone"}}],
    ids=["wrong", "lost", "ended"],
)
def test_what_must_go_on_has_to(changes: dict[str, Any], asked: Asked) -> None:
    """With the right tokens, to its end."""
    with pytest.raises(AssertionError):
        judge(asked, answer(**changes), 1.5, "a fault")


def test_what_must_end_ends_with_an_error(asked: Asked) -> None:
    """By the fault: text behind it is not asked for, but an answer that was complete before has not ended by it."""
    cut = {"pieces": TEXT[:1], "times": TIMES[:1], "error": {"message": "gone"}, "done": False}
    judge(asked, answer(**cut), 1.5, "a fault", ends=True)
    with pytest.raises(AssertionError):
        judge(asked, answer(), 5.5, "a fault", ends=True)
