"""When a member is slow, and when it is fast again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from device_agent.group.lateness import COUNT, FACTOR, FAST_COUNT, FAST_FACTOR, MOST_DOUBLINGS, Lateness, Trials

RATIOS = st.dictionaries(st.sampled_from("abcd"), st.floats(0.5, 1.9 / FACTOR * 0.5 + 0.5), min_size=1)


@given(st.lists(RATIOS, max_size=20), st.floats(0.1, 50))
def test_nobody_is_slow_where_all_are_much_alike(periods: list[dict[str, float]], all_by: float) -> None:
    """Whatever the plan is wrong by for all of them."""
    lateness = Lateness()
    for ratios in periods:
        assert lateness.period({name: ratio * all_by for name, ratio in ratios.items()}) is None


@given(st.integers(2, 5), st.floats(FACTOR * 1.01, 100), st.floats(0.1, 50))
def test_steady_lateness_is_noticed_in_time(members: int, times: float, all_by: float) -> None:
    """In ``COUNT`` periods and not before; the slower of two is named."""
    lateness = Lateness()
    ratios = {str(each): all_by for each in range(members)} | {"late": all_by * times}
    found = [lateness.period(ratios) for _ in range(COUNT)]
    assert found == [None] * (COUNT - 1) + ["late"]


def test_a_hiccup_is_none() -> None:
    """Who is late every second period stays; so does who is alone, or says nothing for a while."""
    lateness = Lateness()
    for _ in range(20):
        assert lateness.period({"a": 1.0, "b": 10.0, "c": 1.0}) is None
        assert lateness.period({"a": 1.0, "b": 1.0, "c": 1.0}) is None
    for _ in range(COUNT - 1):
        assert lateness.period({"a": 1.0, "b": 10.0}) is None
    assert lateness.period({"b": 10.0}) is None and lateness.period({}) is None
    assert lateness.period({"a": 1.0, "b": 10.0}) == "b"


@given(st.integers(1, 12))
def test_coming_back_takes_longer_each_time(times: int) -> None:
    """Good trials in a row, twice as many for each time that it was slow before, up to a bound; a bad one begins
    anew."""
    trials = Trials()
    trials.tried("a", 100.0)
    for _ in range(times):
        trials.slow("a")
    needed = FAST_COUNT << min(MOST_DOUBLINGS, times - 1)
    good, bad = 100.0 / FAST_FACTOR + 1, 100.0 / FAST_FACTOR - 1
    assert not any(trials.tried("a", good) for _ in range(needed - 1))
    assert not trials.tried("a", bad)
    assert [trials.tried("a", good) for _ in range(needed)] == [False] * (needed - 1) + [True]
