"""The suffix index against reading the whole text each time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting.suffixes import NOTHING, Match, SuffixIndex

# Few different tokens, so that nearly everything occurs again; negative ones are not special.
TEXTS = st.integers(1, 3).flatmap(lambda kinds: st.lists(st.integers(0, kinds), max_size=40))
DEPTHS = st.sampled_from([1, 2, 3, 8, 32])
CHANGES = st.lists(st.one_of(st.floats(0, 1), TEXTS), max_size=8)
"""Tokens to append, or the share of the text to keep."""


def naive(text: Sequence[int], said: Sequence[int], length: int) -> dict[int, tuple[int, int]]:
    """What followed the last ``length`` tokens of ``said`` in ``text``: how often, and up to where the last time."""
    suffix = list(said[len(said) - length :])
    places = [end for end in range(length, len(text)) if list(text[end - length : end]) == suffix]
    counts = Counter(text[place] for place in places)
    return {
        token: (count, max(place for place in places if text[place] == token) + 1) for token, count in counts.items()
    }


def check(index: SuffixIndex, match: Match, text: Sequence[int], said: Sequence[int], depth: int) -> None:
    """The contexts of ``match`` are those of ``said`` in ``text``, and none is missing."""
    contexts = list(index.contexts(match))
    expected = {length: naive(text, said, length) for length in range(1, min(depth, len(said)) + 1)}
    expected = {length: followers for length, followers in expected.items() if followers}
    assert max(expected, default=0) == (contexts[0].length if contexts else 0)
    for context in contexts:
        found = {follower.token: (follower.times, follower.recent) for follower in index.followers(context)}
        assert found == expected[context.length]
        assert index.kinds(context) == len(found)
        assert index.total(context) == sum(count for count, _ in found.values())
        assert all(index.count(context, token) == count for token, (count, _) in found.items())
        assert index.count(context, 99) == 0
    for length, followers in expected.items():
        assert followers == expected[min(each.length for each in contexts if each.length >= length)]


@given(TEXTS, DEPTHS)
def test_end(text: list[int], depth: int) -> None:
    """After each token the end of the text has the contexts that a search of the text before it finds."""
    index = SuffixIndex(depth)
    for position, token in enumerate(text, 1):
        index.append(token)
        check(index, index.end, text[:position], text[:position], depth)
    assert len(index) == len(text)


@given(TEXTS, CHANGES, DEPTHS)
def test_truncate(text: list[int], changes: list[float | list[int]], depth: int) -> None:
    """Truncated tokens might never have been, however often the text was cut and went on in another way."""
    index, text = SuffixIndex(depth), list(text)
    index.extend(text)
    for change in changes:
        if isinstance(change, list):
            text += change
            index.extend(change)
        else:
            text = text[: round(change * len(text))]
            index.truncate(len(text))
        assert len(index) == len(text)
        check(index, index.end, text, text, depth)


@given(TEXTS, st.lists(st.integers(0, 4), max_size=40), DEPTHS)
def test_follow(text: list[int], path: list[int], depth: int) -> None:
    """A path beyond the text is matched as far as the text itself goes, and leaves no trace in the index."""
    index = SuffixIndex(depth)
    index.extend(text)
    match = index.end
    for length, token in enumerate(path, 1):
        match = index.follow(match, token)
        check(index, match, text, [*text, *path[:length]], depth)
        assert match.length <= depth
    check(index, index.end, text, text, depth)


def test_empty() -> None:
    """Nothing follows where there is no text, and a token that never was matches nothing."""
    index = SuffixIndex()
    assert index.end == NOTHING
    assert list(index.contexts(index.end)) == []
    assert index.follow(index.end, 5) == NOTHING
    index.append(5)
    assert index.follow(index.end, 5).length == 1
    assert index.follow(index.end, 6) == NOTHING


@pytest.mark.parametrize("position", [-1, 4])
def test_truncate_refuses(position: int) -> None:
    """What is not in the text cannot be its end, and trying leaves it alone."""
    index = SuffixIndex()
    index.extend([1, 2, 1])
    with pytest.raises(ValueError):
        index.truncate(position)
    assert len(index) == 3
    check(index, index.end, [1, 2, 1], [1, 2, 1], 32)


def test_depth_refuses() -> None:
    """An index that tells no strings apart is refused."""
    with pytest.raises(ValueError):
        SuffixIndex(0)


class Counting(SuffixIndex):
    """Counts the tokens appended."""

    appended = 0

    def append(self, token: int) -> None:
        self.appended += 1
        super().append(token)


def test_truncate_is_cheap() -> None:
    """Taking back a little, or nearly all, costs as little as what is taken back, or what stays."""
    index = Counting()
    index.extend([token % 7 for token in range(5000)])
    index.appended = 0
    index.truncate(4990)
    assert index.appended == 0
    index.truncate(12)
    assert index.appended == 12


@pytest.mark.parametrize("text", [[7] * 3000, [1, 2] * 1500, random.Random(1).choices(range(300), k=3000)])
def test_memory(text: list[int]) -> None:
    """Memory grows with the text, not with its square, whatever the text; truncating gives it back."""
    index = SuffixIndex()
    empty = index.nbytes
    index.extend(text[:1000])
    part = index.nbytes - empty
    index.extend(text[1000:])
    assert 100 * len(text) < index.nbytes - empty < 1200 * len(text)
    assert index.nbytes - empty < 4 * part
    index.truncate(0)
    assert index.nbytes == empty
