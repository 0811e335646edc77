"""Plain text as a user would give it: a prompt that begins at some line, and what comes after it. Pure.

A text is parted into passages once, so that some can be kept for measuring. A passage is cut anew each time it is used:
at which of its lines the prompt begins, and how long it is. The same chance gives the same cuts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

LEAST_PROMPT, MOST_PROMPT = 16, 256
"""Tokens of a prompt; within these every length is as likely as its double, for prompts are short more often."""

LEAST_ANSWER = 16
"""Tokens that a passage has behind its prompt, where it is long enough."""

LONGEST_LINE = 400
"""Characters; a longer line is parted at spaces, as if it were several."""


@dataclass(frozen=True)
class Passage:
    """Some lines of a plain text, in order, each with what ends it."""

    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(self.lines)


def passages(text: str, tokens: Callable[[str], int], longest: int) -> Iterator[Passage]:
    """The passages of a text, of at most about ``longest`` tokens each, but for a line that is longer.

    tokens: how many a piece of text has.
    """
    held: list[str] = []
    count = 0
    for line in _lines(text):
        added = tokens(line)
        if held and count + added > longest:
            yield Passage(tuple(held))
            held, count = [], 0
        if held or line.strip():
            held.append(line)
            count += added
    if held:
        yield Passage(tuple(held))


def begins(passage: Passage) -> list[int]:
    """Characters of a passage's text before each line that a prompt may begin with: those that say something."""
    found, at = [], 0
    for line in passage.lines:
        if line.strip():
            found.append(at)
        at += len(line)
    return found


def prompt_length(tokens: int, chance: random.Random) -> int:
    """How many of a passage's ``tokens`` become the prompt; at least 1 and at most all but one, 0 where there is one.

    Between ``LEAST_PROMPT`` and ``MOST_PROMPT`` where the passage is that long, less where it is short.
    """
    most = min(MOST_PROMPT, tokens - LEAST_ANSWER)
    if most <= LEAST_PROMPT:
        return tokens // 2
    return round(LEAST_PROMPT * math.pow(most / LEAST_PROMPT, chance.random()))


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines(keepends=True):
        while len(line) > LONGEST_LINE:
            space = line.rfind(" ", 1, LONGEST_LINE)
            end = space + 1 if space > 0 else LONGEST_LINE
            yield line[:end]
            line = line[end:]
        yield line
