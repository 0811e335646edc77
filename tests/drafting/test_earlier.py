"""What is kept of answers in a form."""

from __future__ import annotations

import pytest

from drafting import earlier
from drafting.earlier import MOST_FORMS, EarlierAnswers
from split_model.sampling import NOBODY


def test_the_last_answers_in_each_form_are_kept() -> None:
    """In the order they were given, with a token that is none behind each; of other forms nothing is said."""
    answers = EarlierAnswers()
    answers.add("person", [1, 2, 3])
    answers.add("place", [7])
    answers.add("person", [1, 4])
    assert list(answers.of("person")) == [1, 2, 3, NOBODY, 1, 4, NOBODY]
    assert list(answers.of("place")) == [7, NOBODY]
    assert list(answers.of("animal")) == []


def test_what_was_handed_out_stays_as_it_was() -> None:
    """An answer that is being drafted by it reads on while others end."""
    answers = EarlierAnswers()
    answers.add("person", [1])
    before = answers.of("person")
    answers.add("person", [2])
    assert list(before) == [1, NOBODY]


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest tokens of a form go first, and the form that was answered in longest ago."""
    monkeypatch.setattr(earlier, "MOST_TOKENS", 5)
    answers = EarlierAnswers()
    for form in range(MOST_FORMS):
        answers.add(form, [form] * 3)
    answers.add(0, [8, 9])
    answers.add("new", range(20))
    assert list(answers.of(0)) == [0, NOBODY, 8, 9, NOBODY]
    assert list(answers.of("new")) == [16, 17, 18, 19, NOBODY]
    assert list(answers.of(1)) == [] and list(answers.of(2)) == [2, 2, 2, NOBODY]
