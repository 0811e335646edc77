"""Plain text is parted at lines, and prompts of it have the lengths that users send."""

from __future__ import annotations

import random

import pytest

from drafting.distill.passages import LEAST_PROMPT, LONGEST_LINE, MOST_PROMPT, Passage, begins, passages, prompt_length


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize(
    "text", ["", "\n\n", "one\n", "a b c\n\nd e f\n" * 40, "no line ends here " * 300, "x" * 5000, "\n  \nlate"]
)
def test_nothing_is_lost_and_none_is_too_long(text: str) -> None:
    """The passages together are the text but for blank lines before it; each is as long as asked, or a single line."""
    found = list(passages(text, words, 20))
    joined = "".join(each.text for each in found)
    assert joined.split() == text.split() and text.endswith(joined)
    for passage in found:
        assert words(passage.text) <= 20 or len(passage.lines) == 1
        assert all(len(line) <= LONGEST_LINE for line in passage.lines)
        assert begins(passage) and all(passage.text[at:].strip() for at in begins(passage))


def test_prompts_begin_at_lines() -> None:
    """Not at a blank one."""
    assert begins(Passage(("one\n", "\n", "two\n", "  \n", "three"))) == [0, 5, 12]


def test_prompts_are_as_long_as_users_send_them() -> None:
    """From 16 tokens to 256, short ones as often as long ones by their logarithm, and always with something behind."""
    chance = random.Random(3)
    drawn = [prompt_length(512, chance) for _ in range(2000)]
    assert min(drawn) >= LEAST_PROMPT and max(drawn) <= MOST_PROMPT
    assert abs(sum(each <= 64 for each in drawn) / 2000 - 0.5) < 0.05
    for tokens in range(80):
        prompt = prompt_length(tokens, chance)
        assert 0 < prompt < tokens if tokens > 1 else prompt == 0
