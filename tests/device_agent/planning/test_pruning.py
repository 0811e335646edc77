"""Which heads a prompt is read with under a limit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.planning.limit import LimitTooShort
from device_agent.planning.pruning import PassCosts, PruningPlan, levels_of, pruned_sets, work_share
from split_model.pruning.kept import KeptHeads, count_pruned

COSTS = PassCosts((10, 100, 200), (0.2, 1.1, 2.4), (0.1, 0.6, 1.2))
LAYERS, HEADS, GROUP = 3, 8, 2


def some_order(seed: int) -> list[tuple[int, int]]:
    order = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    random.Random(seed).shuffle(order)
    return order


def test_times_lie_straight_between_what_was_measured_and_beyond() -> None:
    """At a measured length, between two, and behind the last."""
    assert COSTS.seconds(100, 1) == pytest.approx(1.1) and COSTS.seconds(100, 0) == pytest.approx(0.6)
    assert COSTS.seconds(150, 0.5) == pytest.approx((1.75 + 0.9) / 2)
    assert COSTS.seconds(300, 1) == pytest.approx(3.7) and COSTS.seconds(10, 1) == pytest.approx(0.2)


@given(st.integers(0, 99), st.integers(2, 400), st.floats(0.01, 6))
def test_the_least_pruning_that_is_fast_enough(seed: int, rows: int, limit_s: float) -> None:
    """What is chosen is within the limit, one level less would not be, and the heads left out are the order's first.
    Where nothing is fast enough the error says what could be reached."""
    order = some_order(seed)
    plan = PruningPlan(levels_of(order, LAYERS, HEADS, GROUP), COSTS)
    try:
        sets = plan.within(rows, limit_s).sets
    except LimitTooShort as error:
        assert error.floor_s == COSTS.seconds(rows, 0) > limit_s
        return
    count = count_pruned(sets)
    assert COSTS.seconds(rows, work_share(sets)) <= limit_s
    assert sets == pruned_sets(order, count, LAYERS, HEADS, GROUP)
    if count:
        less = pruned_sets(order, count - 2, LAYERS, HEADS, GROUP)
        assert COSTS.seconds(rows, work_share(less)) > limit_s


def test_which_prompts_a_limit_touches_is_said() -> None:
    """From how many tokens on heads are left out, and from how many on no limit is kept; both by hand."""
    plan = PruningPlan(levels_of(some_order(0), LAYERS, HEADS, GROUP), COSTS)
    assert plan.words(1.1, 150) == "prompts of 101 tokens or more lose heads to be read within 1.1 s"
    assert plan.words(1.1, 300).endswith("within 1.1 s; those of 184 or more take longer without any")
    assert plan.words(0.01, 9).startswith("prompts of 1 tokens or more lose heads")
    assert plan.words(5.0, 300) == "no prompt takes longer than 5 s, so none loses heads"


def test_a_kv_head_is_work_until_its_last_head_goes() -> None:
    """Two heads of one KV head, of four over two: a third of the work for one, half for both."""
    for kept, share in (((0, 1, 2, 3), 1.0), ((1, 2, 3), 5 / 6), ((2, 3), 1 / 2), ((0, 2), 4 / 6), ((), 0.0)):
        assert work_share([KeptHeads(kept, 4, 2)]) == pytest.approx(share)


def test_an_order_names_each_head_once() -> None:
    """One that is missing or doubled is refused."""
    with pytest.raises(ValueError, match="each of"):
        levels_of([*some_order(0)[:-1], (0, 0)], LAYERS, HEADS, GROUP)
