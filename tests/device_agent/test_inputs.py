"""What a model takes of a text: counted before it is tokenised as a whole, and read in portions."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_models import VOCABULARY

from device_agent.answering import tokenizer as tokenizer_module
from device_agent.answering.inputs import TextLimits, read_texts
from device_agent.answering.reading import portions
from device_agent.answering.tokenizer import Tokenizer
from device_agent.chain.reader import AT_ONCE_ROWS
from wire.errors import Code, SessionFailed
from wire.reading_messages import Read


@lru_cache
def letters() -> Tokenizer:
    """A WordPiece tokenizer for which a word of more than 100 letters is one unknown token."""
    made: Any = transformers.BertTokenizer(vocab={token: number for number, token in enumerate(VOCABULARY)})
    return Tokenizer(made, frozenset())


@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.sampled_from(["a", "ab", "x" * 99, "y" * 100, "z" * 101, "w" * 250, "é", "  "]), max_size=60))
def test_a_text_never_has_fewer_tokens_than_were_counted(words: list[str]) -> None:
    """Wherever it is cut for that: a word that is one token may be many once it is in two."""
    before, tokenizer_module.SLICE = tokenizer_module.SLICE, 300  # type: ignore[misc]
    try:
        text = " ".join(words)
        assert letters().least(text, 10**9) <= len(letters().text(text))
    finally:
        tokenizer_module.SLICE = before  # type: ignore[misc]


def test_no_text_is_too_long_by_its_characters_alone() -> None:
    """Where one token may stand for any number of them."""
    assert letters().longest_piece == 0
    request = Read(1, "id", "m", "embed", texts=[["q" * 1_000_000]])
    [(ids, types)] = read_texts(request, letters(), TextLimits(8, len(VOCABULARY), True))
    assert len(ids) == 3 and types is None


@pytest.mark.parametrize("first", [None, 64])
def test_a_text_that_is_too_long_is_named(first: int | None) -> None:
    """By its place in the client's request, with the tokens that it has."""
    request = Read(1, "id", "m", "embed", texts=[["a"], ["a b c d e f g"]], first=first)
    with pytest.raises(SessionFailed) as failed:
        read_texts(request, letters(), TextLimits(8, len(VOCABULARY), False))
    assert failed.value.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert failed.value.param == ("input" if first is None else "input[65]")
    assert f"length is 8 tokens, and {failed.value.param} has 9: shorten it" in failed.value.message


@given(rows=st.lists(st.integers(1, 2 * AT_ONCE_ROWS), min_size=1, max_size=40))
def test_portions_are_all_inputs_in_order_and_none_is_too_large(rows: list[int]) -> None:
    """But where one input alone is."""
    cut = list(portions(rows, AT_ONCE_ROWS))
    assert [at for each in cut for at in each] == list(range(len(rows)))
    for each in cut:
        assert len(each) == 1 or sum(rows[at] for at in each) <= AT_ONCE_ROWS
    for one, other in itertools.pairwise(cut):  # Each is as large as it may be.
        assert sum(rows[at] for at in one) + rows[other.start] > AT_ONCE_ROWS
