"""Credits and waiting times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wire.backoff import FIRST_S, LONGEST_S, delay_s
from wire.credits import Window


@given(st.integers(1, 50), st.lists(st.integers(1, 60), max_size=60))
def test_a_window_never_overflows(limit: int, sizes: list[int]) -> None:
    """Whatever is taken and given back, rows in flight stay within 0 and the limit, and a refusal changes nothing."""
    window, taken = Window(limit), []
    for size in sizes:
        before = window.in_flight
        if window.take(size):
            taken.append(size)
        else:
            assert window.in_flight == before and before + size > limit
            if taken:
                window.give(taken.pop(0))
        assert 0 <= window.in_flight == sum(taken) <= limit


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_delays_are_bounded_and_spread(attempt: int, random: float) -> None:
    """A delay is between 0 and the longest, and a second device at another point of the dice waits another time."""
    assert 0 <= delay_s(attempt, random) <= LONGEST_S
    assert delay_s(0, random) <= FIRST_S
    assert delay_s(attempt, 0.9) > delay_s(attempt, 0.1)
