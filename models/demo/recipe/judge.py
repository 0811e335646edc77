"""Whether an answer is right, by the rule that its test row names."""

from __future__ import annotations

import re


def plain(text: str) -> str:
    """Lower-case text with single spaces."""
    return " ".join(text.lower().split())


def has(text: str, wanted: str) -> bool:
    """Whether the wanted words stand in the text as whole words."""
    return re.search(rf"(?<!\w){re.escape(plain(wanted))}(?!\w)", plain(text)) is not None


def right(answer: str, check: str, want: list[str]) -> bool:
    """Judge one answer: ``exact`` compares the whole text, ``contains`` looks for all wanted words, ``number`` for the
    last number, ``one_of`` for any of the wanted texts."""
    if check == "exact":
        return plain(answer) == plain(want[0])
    if check == "contains":
        return all(has(answer, one) for one in want)
    if check == "one_of":
        return plain(answer) in [plain(one) for one in want]
    if check == "number":
        numbers = re.findall(r"\d+", answer)
        return bool(numbers) and numbers[-1] == want[0]
    raise ValueError(f"unknown check: {check}")
