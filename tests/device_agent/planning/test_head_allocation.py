"""Heads for members under a limit, against every way to hand them out."""

from __future__ import annotations

from itertools import accumulate, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.planning.head_allocation import (
    BelowFloor,
    HeadAllocation,
    HeadTimes,
    algorithm_1,
    allocated,
    layer_limit,
    pruned,
    score,
)

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
        with pytest.raises(BelowFloor) as refused:
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


@given(TIMES, IMPORTANCE, st.floats(0, 8), st.data())
def test_heads_that_stay_are_pruned_where_it_helps(
    times: HeadTimes, importance: list[float], limit_s: float, data: st.DataObject
) -> None:
    """Only on members that would end too late, the least important first, and none more than must be."""
    before = data.draw(st.sampled_from(all_allocations(times)))
    if times.floor_s > limit_s:
        with pytest.raises(BelowFloor):
            pruned(times, importance, before, limit_s)
        return
    after = pruned(times, importance, before, limit_s)
    assert times.seconds(after.counts) <= limit_s
    for of, had, has in zip(times.heads, before.members, after.members, strict=True):
        assert set(has) <= set(had)
        gone = set(had) - set(has)
        if gone:
            assert times.rest_s + of[len(has) + 1] > limit_s
            assert max(importance[head] for head in gone) <= min((importance[head] for head in has), default=1)


@given(st.lists(st.floats(0.1, 2), min_size=1, max_size=6), st.floats(0, 3), st.floats(0, 2), st.floats(0, 1))
def test_what_is_left_is_shared_by_the_layers_left(
    floors_s: list[float], more_s: float, spent_s: float, ends_s: float
) -> None:
    """Layers that take all they may take the whole limit, and one that took less leaves it to those behind it."""
    limit_s = spent_s + sum(floors_s) + ends_s + more_s
    passed = spent_s
    for at in range(len(floors_s)):
        passed += layer_limit(limit_s + 1e-9, passed, floors_s[at:], ends_s)
    assert passed + ends_s == pytest.approx(limit_s, abs=1e-6)
    if len(floors_s) > 1 and more_s > 0.01:
        first = layer_limit(limit_s, spent_s, floors_s, ends_s)
        later = layer_limit(limit_s, spent_s + floors_s[0], floors_s[1:], ends_s)
        assert later - floors_s[1] > first - floors_s[0]
    with pytest.raises(BelowFloor, match="raise the limit"):
        layer_limit(limit_s - more_s - 0.01, spent_s, floors_s, ends_s)
