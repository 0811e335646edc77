"""Whole units at least cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.planning.search import EXHAUSTIVE, best_parts
from device_agent.planning.shares import all_ways, handed_out, ways

SPEEDS = st.lists(st.floats(0.1, 10), min_size=2, max_size=5)


@given(st.integers(1, 12), st.lists(st.floats(0.1, 10), min_size=2, max_size=3), st.data())
def test_few_ways_are_all_looked_at(units: int, speeds: list[float], data: st.DataObject) -> None:
    """Whatever the cost is."""
    all_of_them = list(all_ways(units, len(speeds)))
    assert len(all_of_them) <= EXHAUSTIVE
    numbers = st.lists(st.floats(0, 1), min_size=len(all_of_them), max_size=len(all_of_them))
    costs = dict(zip(all_of_them, data.draw(numbers), strict=True))
    found = best_parts(units, [handed_out(units, speeds)], costs.__getitem__)
    assert costs[found] == min(costs.values())


@given(SPEEDS, st.integers(400, 2000))
def test_many_ways_come_near_what_is_possible(speeds: list[float], units: int) -> None:
    """Work that ends when the slowest ends, each member with a start of its own: within two units of an even end."""
    assert ways(units, len(speeds)) > EXHAUSTIVE or len(speeds) == 2
    late = [at * units / 50 / speed for at, speed in enumerate(speeds)]

    def cost(parts: tuple[int, ...]) -> float:
        return max(
            first + part / speed if part else 0.0 for first, part, speed in zip(late, parts, speeds, strict=True)
        )

    found = best_parts(units, [handed_out(units, [1.0] * len(speeds))], cost)
    assert sum(found) == units and min(found) >= 0
    # Nobody may end sooner than all work spread over all speeds from the very start.
    ideal = (units + sum(first * speed for first, speed in zip(late, speeds, strict=True))) / sum(speeds)
    assert cost(found) <= max(ideal, units / sum(speeds)) + 2.1 / min(speeds)


@given(SPEEDS, st.integers(300, 900), st.data())
def test_no_result_is_worse_than_a_start(speeds: list[float], units: int, data: st.DataObject) -> None:
    """Also where costs go up and down."""
    starts = [handed_out(units, data.draw(st.permutations(speeds))) for _ in range(2)]

    def cost(parts: tuple[int, ...]) -> float:
        return 1 + sum((part * 7919) % 101 for part in parts)

    assert cost(best_parts(units, starts, cost)) <= min(map(cost, starts))


def test_no_cost_is_no_trouble() -> None:
    """Nothing to gain: the best start stays."""
    assert best_parts(1000, [(500, 300, 200)], lambda parts: 0.0) == (500, 300, 200)
    assert best_parts(7, [(7,)], lambda parts: 1.0) == (7,)
    with pytest.raises(IndexError):
        best_parts(7, [], lambda parts: 1.0)
