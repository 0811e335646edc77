"""What a model is asked for each kind of question, and what its answers say. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from gateway.decisions.schema import (
    AnyQuestion,
    Choice,
    ChoiceAnswer,
    ChoiceChance,
    LevelChance,
    Predicate,
    PredicateAnswer,
    ScoreAnswer,
)
from wire.decision_messages import Question

YES_OR_NO: Final = ("yes", "no")


def question_of(asked: AnyQuestion, instructions: str) -> Question:
    """Return the text of a question and the answers it may have."""
    if isinstance(asked, Predicate):
        # What is alike comes first: it is read once.
        return Question(f"Answer with yes or no, and nothing else. Is this true? {instructions}", [*YES_OR_NO])
    if isinstance(asked, Choice):
        words = _words([each.value for each in asked.choices])
        lines = _lines(words, [each.description for each in asked.choices])
        return Question(f"{instructions}\nAnswer with one of these, and nothing else:\n{lines}", words)
    numbers = [str(number) for number in range(len(asked.levels))]
    told = [each.label + (f" ({each.description})" if each.description else "") for each in asked.levels]
    return Question(
        f"{instructions}\nAnswer with the number of one of these, and nothing else:\n{_lines(numbers, told)}", numbers
    )


def answer_of(asked: AnyQuestion, chances: Sequence[float]) -> PredicateAnswer | ChoiceAnswer | ScoreAnswer:
    """Return what the client gets, by how likely the answers of ``question_of`` are, in their order."""
    if isinstance(asked, Predicate):
        return PredicateAnswer(asked.name, chances[0])
    likeliest = max(range(len(chances)), key=chances.__getitem__)
    if isinstance(asked, Choice):
        values = [each.value for each in asked.choices]
        each_value = [ChoiceChance(*each) for each in zip(chances, values, strict=True)]
        return ChoiceAnswer(asked.name, values[likeliest], chances[likeliest], each_value)
    levels = [LevelChance(level.label, chances[at], at) for at, level in enumerate(asked.levels)]
    expected = sum(each.value * each.probability for each in levels)
    return ScoreAnswer(asked.name, expected, chances[likeliest], levels)


def _words(values: list[str | bool]) -> list[str]:
    """Values as text; those that would read the same, a text and a boolean, as JSON."""
    words = [each if isinstance(each, str) else json.dumps(each) for each in values]
    times = Counter(words)
    return [
        word if times[word] == 1 else json.dumps(each, ensure_ascii=False)
        for word, each in zip(words, values, strict=True)
    ]


def _lines(words: Iterable[str], told: Iterable[str | None]) -> str:
    pairs = zip(words, told, strict=True)
    return "\n".join(f"- {word}: {more}" if more else f"- {word}" for word, more in pairs)
