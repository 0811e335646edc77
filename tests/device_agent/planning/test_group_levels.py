"""Which heads a group reads a prompt with, and who computes them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from group_plans import TINY_CAUSAL, profile, task
from hypothesis import given
from hypothesis import strategies as st

from device_agent.planning.edgeformer import plan_edgeformer
from device_agent.planning.group_levels import levels_in_group
from device_agent.planning.head_allocation import HeadTimes
from device_agent.planning.head_times import planned_times
from device_agent.planning.modes import plan_for
from device_agent.planning.plan import ByRows, Hybrid, Lent, Sharded, Whole
from device_agent.planning.pruning import Level
from device_agent.planning.task import Work
from split_model.pruning.kept import count_pruned

LAYERS, GROUP, MEMBERS = 3, 2, 3
PLANNED = st.lists(st.integers(0, 3), min_size=MEMBERS, max_size=MEMBERS).filter(any)


def some_order(layers: int, heads: int, seed: int) -> list[tuple[int, int]]:
    order = [(layer, head) for layer in range(layers) for head in range(heads)]
    random.Random(seed).shuffle(order)
    return order


def levels(times: list[HeadTimes], groups: int, seed: int = 0, first: int = 0) -> list[Level]:
    order = some_order(len(times), groups * GROUP, seed)
    return levels_in_group(order, times, first, groups * GROUP, GROUP)


@given(PLANNED, st.lists(st.floats(0.1, 9), min_size=MEMBERS, max_size=MEMBERS), st.integers(0, 99))
def test_each_level_is_sooner_and_whoever_would_wait_keeps_heads(
    planned: list[int], speeds: list[float], seed: int
) -> None:
    """From all heads to none; a member computes what is planned for it at most, all groups that are left are computed,
    and no member could have computed one more by the time that the last is done."""
    groups = sum(planned)
    times = HeadTimes(
        tuple(tuple(count / speed for count in range(most + 1)) for most, speed in zip(planned, speeds, strict=True)),
        0.0,
    )
    found = levels([times] * LAYERS, groups, seed)
    assert found[0].share == pytest.approx(1) and count_pruned(found[0].sets) == 0
    assert found[-1].share == 0 and count_pruned(found[-1].sets) == LAYERS * groups * GROUP
    assert all(before.share >= after.share for before, after in pairwise(found))
    for level in found:
        for kept, counts in zip(level.sets, level.places, strict=True):
            if not counts:
                assert kept.is_all or sum(each > 0 for each in planned) < 2
                continue
            assert sum(counts) == len(kept.groups) and all(map(int.__le__, counts, planned))
            more = [at for at, most in enumerate(planned) if counts[at] < most]
            assert all(times.heads[at][counts[at] + 1] > times.seconds(counts) for at in more)


def test_of_two_equal_members_both_lose_a_head_or_none_does() -> None:
    """One less on one of them would save nothing."""
    times = planned_times(None, Sharded((2, 2), (1, 1)), 4, 2)
    lefts = {len(kept.groups) for level in levels([times] * LAYERS, 4) for kept in level.sets}
    assert lefts == {0, 2, 4}
    uneven = planned_times(None, Sharded((3, 1), (1, 1)), 4, 2)
    found = levels([uneven], 4)
    assert [each.places[0] for each in found] == [(), (2, 0), (1, 0), (0, 0)]
    assert [each.share for each in found] == pytest.approx([1, 2 / 3, 1 / 3, 0])


def test_layers_of_this_device_and_whole_ones_have_no_places() -> None:
    """One device computes what is left of them."""
    here, whole = planned_times(None, Whole(0), 4, 1), planned_times(None, Whole(1), 4, 3)
    shared = planned_times(None, Sharded((2, 1, 1), (1, 1, 1)), 4, 3)
    for level in levels([here, whole, shared], 4, first=1):
        assert len(level.sets) == 3 and len(level.places) == 2 and level.places[0] == ()
        assert (level.places[1] == ()) is level.sets[2].is_all


@pytest.mark.parametrize("mode", ["tensor", "galaxy", "pipeline", "edgeformer"])
def test_every_form_that_leaves_heads_out_has_times_by_its_profile(mode: str) -> None:
    """Rising, from nothing, as far as groups are planned; a member half as fast takes twice as long for its heads, and
    one to which rows have to travel longer."""
    measured = profile(TINY_CAUSAL, [4e6, 2e6, 1e6], 1e9)
    asked = task(TINY_CAUSAL, measured, Work(256, 8, prunes=True))
    plan = plan_for(mode, asked)
    here = replace(asked, members=plan.members)
    for layer in set(plan.layers):
        times = planned_times(here, layer, TINY_CAUSAL.kv_heads, len(plan.members))
        assert times.rest_s == 0 and all(of[0] == 0 and list(of) == sorted(of) for of in times.heads)
        assert sum(len(of) - 1 for of in times.heads) == TINY_CAUSAL.kv_heads
    both = planned_times(asked, Sharded((1, 1, 0), (1, 1, 1)), 2, 3)
    assert both.heads[1][1] == pytest.approx(2 * both.heads[0][1]) and len(both.heads[2]) == 1
    lent = planned_times(asked, Lent(1, (1, 1, 0), (0, 1, 0), projections=True), 2, 3)
    assert lent.heads[0][1] > both.heads[0][1] and lent.heads[1][1] == both.heads[1][1]


def test_rows_are_not_shared_where_heads_may_be_left_out() -> None:
    """They would be, over links so fast."""
    measured = profile(TINY_CAUSAL, [1e6, 1e6, 1e6], 1e12, rtt_s=1e-9)
    plans = [plan_edgeformer(task(TINY_CAUSAL, measured, Work(1024, prunes=prunes))) for prunes in (False, True)]
    assert {name for name, _ in plans[0].considered} & {"voltage", "sequence"}
    assert not {name for name, _ in plans[1].considered} & {"voltage", "sequence"}
    assert all(isinstance(layer, (Whole, Lent, Sharded, Hybrid)) for layer in plans[1].layers)
    with pytest.raises(ValueError, match="rows"):
        planned_times(None, ByRows((1.0, 1.0), Whole(0)), 2, 2)
