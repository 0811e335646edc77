"""Rows of keys and values on their way between two members."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.planning.moves import (
    LEAST_ROWS,
    Copy,
    Drop,
    Moved,
    arrived,
    decided,
    given_up,
    layers_worth,
    next_copy,
)

HERE, THERE = 120, 60

events = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(1, 20)),
        st.tuples(st.just("decide"), st.integers(0, 150)),
        st.tuples(st.just("arrive"), st.just(0)),
        st.tuples(st.just("lose"), st.just(0)),
    ),
    max_size=60,
)


@given(events, st.integers(0, 30))
def test_no_row_is_ever_nowhere_and_nobody_passes_its_memory(steps: list[tuple[str, int]], until: int) -> None:
    """Beside two sets of rows, to which the orders are given as they come: copies add, and only drops take away."""
    state = Moved(0)
    here: set[int] = set()
    there: set[int] = set()
    copied: Copy | None = None
    for what, number in steps:
        if what == "grow":
            number = min(number, HERE - state.here)
            here |= set(range(state.rows, state.rows + number))
            state = replace(state, rows=state.rows + number)
        elif what == "decide":
            state, order = decided(state, number, HERE - state.here, THERE - state.there, until)
            if order is not None:
                assert copied is None, "one transfer at a time"
                assert set(order.rows) <= (here if order.way == "out" else there)
                copied = order
                (there if order.way == "out" else here).update(order.rows)
        elif what == "arrive" and copied is not None:
            state, drop = arrived(state)
            assert drop == Drop("here" if copied.way == "out" else "there", copied.rows)
            (here if drop.place == "here" else there).difference_update(drop.rows)
            copied = None
        elif what == "lose" and copied is not None:
            state = given_up(state)
            (there if copied.way == "out" else here).difference_update(copied.rows)
            copied = None
        assert here | there == set(range(state.rows))
        assert len(here) == state.here <= HERE and len(there) == state.there <= THERE
        assert there == set(range(state.there)), "always the oldest"


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.integers(0, 60))
def test_it_comes_to_rest(rows: int, away: int, worth: int, room: int) -> None:
    """With the same worth again and again nothing more is begun after a transfer, and nothing waits for ever."""
    state = Moved(max(rows, away), away)
    for _ in range(2):
        state, order = decided(state, worth, 1000, room, 0)
        if order is None:
            break
        state, _ = arrived(state)
        room -= len(order.rows) if order.way == "out" else 0
    assert decided(state, worth, 1000, room, 0)[1] is None
    assert state.away in (away, min(worth, state.rows)) or room == 0


def test_a_drop_is_followed_at_once_and_a_rise_only_near_the_threshold() -> None:
    """Algorithm 2, lines 11 to 16, and changes of a few rows not at all."""
    state = Moved(100, 40)
    assert decided(state, 20, 50, 50, until_threshold=500)[1] == Copy("back", range(20, 40))
    assert decided(state, 80, 50, 50, until_threshold=500)[1] is None
    assert decided(state, 80, 50, 50, until_threshold=LEAST_ROWS)[1] == Copy("out", range(40, 80))
    assert decided(state, 80, 50, 10, until_threshold=0)[1] == Copy("out", range(40, 50))
    assert decided(state, 80, 50, 0, until_threshold=0)[1] is None
    assert decided(state, 40 - LEAST_ROWS + 1, 50, 50, until_threshold=0)[1] is None
    with pytest.raises(ValueError, match="nothing was under way"):
        arrived(state)


@given(st.floats(-10, 10), st.floats(1e-6, 10), st.integers(0, 100))
def test_what_it_is_worth(uncovered_s: float, layer_s: float, layers: int) -> None:
    """Eq. 8: none where all reads are covered, never more than there are nor than what is uncovered has time for."""
    found = layers_worth(uncovered_s, layer_s, layers)
    assert 0 <= found <= layers
    assert found == 0 or (uncovered_s > 0 and found * layer_s <= uncovered_s * (1 + 1e-9))


def test_layers_go_one_after_the_other_and_come_back_last_first() -> None:
    """Of all sessions, as far as it is worth it; what is worth it no more comes back to the last row, however few; and
    one copy at a time."""
    states = {(layer, session): Moved(60) for layer in range(3) for session in (1, 2)}
    ways: list[tuple[str, int, int]] = []

    def settled(stay: int, until: int, go: int = 3) -> None:
        worth = stay, min(stay, go)
        while (found := next_copy(states, worth, 50, 40, until)) is not None:
            key, state, copy = found
            assert next_copy({**states, key: state}, worth, 50, 40, until) is None
            assert len(copy.rows) <= (40 if copy.way == "out" else 50)
            ways.append((copy.way, *key))
            states[key], _ = arrived(state)

    settled(2, 100)
    assert not ways, "the threshold is far"
    settled(2, 0, 0)
    assert not ways, "by too little"
    settled(2, 0)
    assert {key: state.away for key, state in states.items() if state.away} == dict.fromkeys(
        [(0, 1), (0, 2), (1, 1), (1, 2)], 60 - LEAST_ROWS
    )
    assert ways == sorted(ways) and {way for way, *_ in ways} == {"out"}
    states[1, 2] = replace(states[1, 2], away=3)
    ways.clear()
    settled(1, 100)
    assert ways == [("back", 1, 2), ("back", 1, 1), ("back", 1, 1)]
    assert [state.away for state in states.values()] == [52, 52, 0, 0, 0, 0]
