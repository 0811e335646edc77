"""When a member is slow, and when it is fast again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from device_agent.group.lives.lateness import (
    COUNT,
    FACTOR,
    FAST_COUNT,
    FAST_FACTOR,
    MOST_DOUBLINGS,
    MOST_USUAL,
    PAUSE_S,
    Lateness,
    Spent,
    Trials,
)

RATIOS = st.dictionaries(st.sampled_from("abcd"), st.floats(0.5, 1.9 / FACTOR * 0.5 + 0.5), min_size=1)
SETTLED = 20
"""Reports after which it is known that the plan is right about everybody."""


def spent(ratios: dict[str, float], expected: float = 0.1) -> dict[str, Spent]:
    """Reports of members of which as much was expected."""
    return {name: Spent(ratio * expected, expected) for name, ratio in ratios.items()}


def settled() -> Lateness:
    """A life in which three members have been as fast as planned."""
    lateness = Lateness()
    for _ in range(SETTLED):
        assert lateness.period(spent({"a": 1.0, "b": 1.0, "c": 1.0})) is None
    return lateness


@given(st.lists(RATIOS, max_size=20), st.floats(0.1, 50), st.floats(0.02, 60))
def test_nobody_is_slow_where_all_are_much_alike(
    periods: list[dict[str, float]], all_by: float, expected: float
) -> None:
    """Whatever the plan is wrong by for all of them, and however long steps are."""
    lateness = Lateness()
    for ratios in periods:
        assert lateness.period(spent({name: ratio * all_by for name, ratio in ratios.items()}, expected)) is None


@given(st.integers(2, 5), st.floats(FACTOR * MOST_USUAL * 1.01, 20), st.floats(0.1, 1.5))
def test_steady_lateness_is_noticed_in_time(members: int, times: float, all_by: float) -> None:
    """In ``COUNT`` short reports and not before; the slower of two is named."""
    lateness = Lateness()
    ratios = {str(each): all_by for each in range(members)} | {"late": all_by * times}
    found = [lateness.period(spent(ratios, 0.02)) for _ in range(COUNT)]
    assert found == [None] * (COUNT - 1) + ["late"]


def test_who_slows_down_a_little_more_than_allowed_is_noticed() -> None:
    """Once its reports have shown that the plan is right about it."""
    lateness = settled()
    ratios = {"a": 1.0, "b": FACTOR * 1.05, "c": 1.0}
    assert [lateness.period(spent(ratios)) for _ in range(COUNT)] == [None] * (COUNT - 1) + ["b"]


@given(st.floats(1.0, MOST_USUAL * FACTOR * 0.99), st.floats(0.02, 60))
def test_a_plan_that_is_wrong_about_one_member_makes_nobody_slow(times: float, expected: float) -> None:
    """Where it has been so since it began; but beside that the member may be late."""
    lateness = Lateness()
    for _ in range(SETTLED):
        assert lateness.period(spent({"a": 1.0, "b": times, "c": 1.0}, expected)) is None
    worse = {"a": 1.0, "b": times * FACTOR * MOST_USUAL, "c": 1.0}
    assert "b" in [lateness.period(spent(worse, expected)) for _ in range(COUNT)]


@given(st.floats(0.5, 30), st.floats(4, 20))
def test_long_steps_tell_sooner_than_many(expected: float, times: float) -> None:
    """Counted is how long a member is late, too: it takes few reports where each is long."""
    lateness, seconds, reports = settled(), 0.0, 0
    while lateness.period(spent({"a": 1.0, "b": times, "c": 1.0}, expected)) is None:
        reports += 1
        seconds += times * expected
    assert seconds <= 2 * PAUSE_S * 1.001 and reports < COUNT


@given(
    st.lists(st.tuples(st.floats(0.02, 20), st.floats(0.5, 1.9), st.floats(0, 1)), min_size=1, max_size=4),
    st.floats(0.1, 5),
    st.booleans(),
)
def test_a_pause_is_forgiven(during: list[tuple[float, float, float]], all_by: float, at_first: bool) -> None:
    """Of ``PAUSE_S``, however it falls on the reports meanwhile, of which there are four at most, and on steps of
    whatever length; before it and behind it the member is as fast as it may be."""
    lateness = Lateness() if at_first else settled()
    parts = sum(part for *_, part in during) or 1.0
    pauses = [PAUSE_S * 0.99 * part / parts for *_, part in during]
    for (expected, ratio, _), pause in zip(during, pauses, strict=True):
        reports = spent({"a": all_by, "c": all_by}, expected)
        reports["b"] = Spent(ratio * all_by * expected + pause, expected)
        assert lateness.period(reports) is None
    for _ in range(SETTLED):
        assert lateness.period(spent({"a": all_by, "b": 1.9 * all_by, "c": all_by})) is None


def test_the_portal_is_never_slow() -> None:
    """However slow it is; who is slow beside it is found all the same."""
    lateness = Lateness("portal")
    for _ in range(SETTLED):
        assert lateness.period(spent({"portal": 100.0, "a": 1.0, "b": 1.0})) is None
    slow = spent({"portal": 100.0, "a": 1.0, "b": 10.0})
    assert "b" in [lateness.period(slow) for _ in range(COUNT)]


def test_a_hiccup_is_none() -> None:
    """Who is late every second period stays; so does who is alone, or says nothing for a while."""
    lateness = settled()
    for _ in range(20):
        assert lateness.period(spent({"a": 1.0, "b": 2.9, "c": 1.0})) is None
        assert lateness.period(spent({"a": 1.0, "b": 1.0, "c": 1.0})) is None
    for _ in range(COUNT - 1):
        assert lateness.period(spent({"a": 1.0, "b": 10.0}, 0.02)) is None
    assert lateness.period({}) is None
    assert lateness.period(spent({"a": 1.0, "b": 10.0}, 0.02)) == "b"
    assert Lateness().period(spent({"b": 1000.0})) is None


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
