"""Heads for members under a limit, against every way to hand them out."""

from __future__ import annotations

from itertools import accumulate, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.planning.head_allocation import (
    HeadAllocation,
    HeadTimes,
    algorithm_1,
    allocated,
    score,
    soonest,
)
from device_agent.planning.limit import LimitTooShort

HEADS = 5
STEPS = st.lists(st.floats(0.01, 2), min_size=1, max_size=HEADS + 1)
"""By how much each further head makes a member later; who has room for fewer has fewer."""
TIMES = st.builds(
    HeadTimes,
    st.lists(STEPS.map(lambda steps: tuple(accumulate(steps))), min_size=1, max_size=3).map(tuple),
    st.floats(0, 2),
)
IMPORTANCE = st.lists(st.floats(0, 1), min_size=HEADS, max_size=HEADS)


def all_allocations(times: HeadTimes) -> list[HeadAllocation]:
    """Each head at any member that has room, or left out."""
    members = len(times.heads)
    found = []
    for places in product(range(members + 1), repeat=HEADS):
        of = [tuple(head for head, place in enumerate(places) if place == member) for member in range(members)]
        if all(len(heads) < len(room) for heads, room in zip(of, times.heads, strict=True)):
            found.append(HeadAllocation(tuple(of)))
    return found


def kept_importance(importance: list[float], allocation: HeadAllocation) -> float:
    return sum(importance[head] for heads in allocation.members for head in heads)


@given(TIMES, IMPORTANCE, st.floats(0, 8))
def test_no_way_to_keep_heads_is_better(times: HeadTimes, importance: list[float], limit_s: float) -> None:
    """Nothing within the limit keeps more importance, and of what keeps as many heads nothing has more score; where
    none can be within the limit, the error says what could be reached."""
    within = [each for each in all_allocations(times) if times.seconds(each.counts) <= limit_s]
    if not within:
        with pytest.raises(LimitTooShort) as refused:
            allocated(times, importance, limit_s)
        assert refused.value.floor_s == times.floor_s > limit_s
        return
    found = allocated(times, importance, limit_s)
    assert found in within
    assert found.kept == max(each.kept for each in within)
    assert kept_importance(importance, found) == pytest.approx(
        max(kept_importance(importance, each) for each in within), abs=1e-9
    )
    as_many = [score(times, importance, each) for each in within if each.kept == found.kept]
    assert score(times, importance, found) == pytest.approx(max(as_many), abs=1e-9)


@given(TIMES, IMPORTANCE, st.floats(0, 8), st.booleans())
def test_the_papers_heuristic_keeps_the_limit_and_no_more(
    times: HeadTimes, importance: list[float], limit_s: float, printed: bool
) -> None:
    """With either sum; where there is a way at all."""
    found = algorithm_1(times, importance, limit_s, printed=printed)
    if times.floor_s <= limit_s:
        assert found in all_allocations(times) and times.seconds(found.counts) <= limit_s
        assert found.kept <= allocated(times, importance, limit_s).kept
    else:
        assert found.kept == 0


def test_the_printed_sum_leaves_out_what_there_is_time_for() -> None:
    """Two members compute a head each in 1 s; by line 12 that takes 2."""
    times = HeadTimes(((0.0, 1.0), (0.0, 1.0)), 0.0)
    assert algorithm_1(times, [1.0, 0.5], 1.5, printed=True).kept == 1
    assert algorithm_1(times, [1.0, 0.5], 1.5).kept == 2


@given(TIMES, IMPORTANCE, st.integers(0, HEADS))
def test_heads_that_must_be_kept_are_done_as_soon_as_they_can_be(
    times: HeadTimes, importance: list[float], kept: int
) -> None:
    """No way to keep as many ends sooner, what is kept are the most important, and none more could be kept by then."""
    able = [each for each in all_allocations(times) if each.kept >= kept]
    if not able:
        with pytest.raises(ValueError, match="no room"):
            soonest(times, importance, kept)
        return
    found = soonest(times, importance, kept)
    soonest_s = times.seconds(found.counts)
    assert soonest_s == min(times.seconds(each.counts) for each in able)
    assert found.kept == max(each.kept for each in able if times.seconds(each.counts) <= soonest_s)
    chosen = {head for heads in found.members for head in heads}
    least = min((importance[head] for head in chosen), default=1)
    assert all(importance[head] <= least for head in set(range(HEADS)) - chosen)
