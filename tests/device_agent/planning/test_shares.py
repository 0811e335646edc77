"""Whole units by shares."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from device_agent.planning.shares import all_ways, handed_out, spans, ways

SHARES = st.lists(st.floats(0, 1e9), min_size=1, max_size=8)


@given(st.integers(0, 10_000), SHARES)
def test_all_units_are_handed_out_as_shared(units: int, shares: list[float]) -> None:
    """Exactly once each, nobody is off by more than one, and who has no share gets none but by rounding of the end."""
    assume(sum(shares) > 1e-6)
    parts = handed_out(units, shares)
    assert sum(parts) == units and min(parts) >= 0
    for part, share in zip(parts, shares, strict=True):
        assert abs(part - units * share / sum(shares)) <= 1 + 1e-6
    assert [place for span in spans(parts) for place in span] == list(range(units))


@pytest.mark.parametrize("shares", [[], [0.0, 0.0], [1.0, -1.0], [float("nan")], [float("inf"), 1.0]])
def test_what_are_no_shares_is_refused(shares: list[float]) -> None:
    """Negative, none, or no numbers."""
    with pytest.raises(ValueError, match="no shares"):
        handed_out(5, shares)


@given(st.integers(0, 7), st.integers(1, 4))
def test_every_way_is_given_once(units: int, parts: int) -> None:
    """And as many as are counted."""
    found = list(all_ways(units, parts))
    assert len(found) == len(set(found)) == ways(units, parts)
    assert all(sum(way) == units and len(way) == parts and min(way) >= 0 for way in found)
