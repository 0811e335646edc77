"""One training or test conversation, and the rule that keeps held-out prompts out of the training text."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

Message = dict[str, str]

HELDOUT_SHARE = 10
"""One key in this many belongs to the held-out side."""


@dataclass
class Sample:
    """A conversation whose last message is the assistant's reference answer.

    ``key`` names what must not be shared between training and test (a pair of numbers, a set of facts, a
    question), ``also`` further such keys in earlier turns; ``check`` says how an answer is judged and ``want``
    holds what the judge looks for.
    """

    skill: str
    key: str
    messages: list[Message]
    check: str
    want: list[str] = field(default_factory=list)
    also: list[str] = field(default_factory=list)

    @property
    def answer(self) -> str:
        """The reference answer: the last assistant message."""
        return self.messages[-1]["content"]

    @property
    def prompt(self) -> list[Message]:
        """The conversation without the reference answer."""
        return self.messages[:-1]


Maker = Callable[[random.Random], Sample]


def is_heldout(key: str) -> bool:
    """Whether a key belongs to the held-out side; the same on every machine and in every run."""
    return hashlib.blake2b(key.encode(), digest_size=4).digest()[0] % HELDOUT_SHARE == 0


def chat(*turns: str, system: str = "") -> list[Message]:
    """Messages for turns that go user, assistant, user, assistant and so on."""
    messages = [{"role": "system", "content": system}] if system else []
    for number, text in enumerate(turns):
        messages.append({"role": "assistant" if number % 2 else "user", "content": text})
    return messages


def pick(rng: random.Random, options: Sequence[T]) -> T:
    """One of the options, each as likely as the next."""
    return options[int(rng.random() * len(options))]


def weighted(rng: random.Random, options: Sequence[tuple[int, T]]) -> T:
    """One of the options, in proportion to the whole number beside it."""
    point = rng.random() * sum(weight for weight, _ in options)
    for weight, option in options:
        point -= weight
        if point < 0:
            return option
    return options[-1][1]


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def article(noun: str) -> str:
    """The noun phrase with "a" or "an" before it."""
    return ("an " if noun[:1].lower() in "aeiou" else "a ") + noun


def mend_articles(text: str) -> str:
    """The text with "an" for "a" before a vowel."""
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


def listing(parts: Iterable[str]) -> str:
    """The parts joined as English joins a list: "a, b and c"."""
    words = list(parts)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def listed(text: str, at: str = " ") -> list[str]:
    """The words of a text, or the phrases between a sign, so that long lists read well in the source."""
    return text.split(at)
