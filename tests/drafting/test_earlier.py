"""What is kept of answers in a form."""

from __future__ import annotations

import pytest

from drafting import earlier
from drafting.earlier import MOST_FORMS, EarlierAnswers
from split_model.sampling import NOBODY


def test_the_last_answers_in_each_form_are_kept() -> None:
    """In the order they were given, with a token that is none behind each; of other forms nothing is said."""
    answers = EarlierAnswers()
    answers.add(b"person", [1, 2, 3])
    answers.add(b"place", [7])
    answers.add(b"person", [1, 4])
    assert list(answers.of(b"person")) == [1, 2, 3, NOBODY, 1, 4, NOBODY]
    assert list(answers.of(b"place")) == [7, NOBODY]
    assert list(answers.of(b"animal")) == []


def test_what_was_handed_out_stays_as_it_was() -> None:
    """An answer that is being drafted by it reads on while others end."""
    answers = EarlierAnswers()
    answers.add(b"person", [1])
    before = answers.of(b"person")
    answers.add(b"person", [2])
    assert list(before) == [1, NOBODY]


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest tokens of a form go first, and the form that was answered in longest ago."""
    monkeypatch.setattr(earlier, "MOST_TOKENS", 5)
    answers = EarlierAnswers()
    forms = [bytes([number]) for number in range(MOST_FORMS)]
    for number, form in enumerate(forms):
        answers.add(form, [number] * 3)
    answers.add(forms[0], [8, 9])
    answers.add(b"new", range(20))
    assert list(answers.of(forms[0])) == [0, NOBODY, 8, 9, NOBODY]
    assert list(answers.of(b"new")) == [16, 17, 18, 19, NOBODY]
    assert list(answers.of(forms[1])) == [] and list(answers.of(forms[2])) == [2, 2, 2, NOBODY]
