"""Pairs of a group take turns."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from device_agent.profiling.turns import turns


@given(st.integers(2, 64))
def test_every_pair_has_its_turn_and_nobody_two_at_once(size: int) -> None:
    """In as few turns as there can be."""
    found = turns(size)
    assert sorted(pair for turn in found for pair in turn) == list(combinations(range(size), 2))
    for turn in found:
        members = [member for pair in turn for member in pair]
        assert len(set(members)) == len(members)
    assert len(found) == (size - 1 if size % 2 == 0 else size)
