"""How a verification may end, and what is worth preparing for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting.outcomes import Outcome, outcomes

chances_of = st.lists(st.floats(0, 1), max_size=6)


def alternatives_of(seed: list[float], count: int) -> list[list[tuple[int, float]]]:
    return [[(token, weight / (place + 1)) for token, weight in enumerate(seed)] for place in range(count)]


def test_outcomes_by_hand() -> None:
    """Two drafted tokens, the first likely, the second not: all that may happen, most probable first."""
    found = outcomes([0.9, 0.5], [[(7, 0.1)], [(8, 0.3), (9, 0.1)], [(4, 0.8), (5, 0.2)]], 10, "all")
    expected = [
        Outcome(2, 4, 0.9 * 0.5 * 0.8),
        Outcome(1, 8, 0.9 * 0.3),
        Outcome(0, 7, 0.1),
        Outcome(2, 5, 0.9 * 0.5 * 0.2),
        Outcome(1, 9, 0.9 * 0.1),
    ]
    assert [(each.accepted, each.token) for each in found[:2]] == [(2, 4), (1, 8)]
    assert sorted((each.accepted, each.token) for each in found) == sorted(
        (each.accepted, each.token) for each in expected
    )
    for each in expected:
        [match] = [one for one in found if (one.accepted, one.token) == (each.accepted, each.token)]
        assert match.probability == pytest.approx(each.probability)
    assert outcomes([0.9, 0.5], [[(7, 0.1)], [(8, 0.3), (9, 0.1)], [(4, 0.8), (5, 0.2)]], 2, "all") == found[:2]


@given(chances_of, st.lists(st.floats(0, 1), max_size=5), st.integers(1, 50))
def test_probabilities_are_those_of_different_endings(chances: list[float], weights: list[float], most: int) -> None:
    """So together they are at most 1, also where weights say more than there is; and the order is theirs."""
    found = outcomes(chances, alternatives_of(weights, len(chances) + 1), most, "all")
    assert len(found) <= most
    assert sum(each.probability for each in found) <= 1 + 1e-9
    assert [each.probability for each in found] == sorted((each.probability for each in found), reverse=True)
    assert len({(each.accepted, each.token) for each in found}) == len(found)


@given(chances_of, st.lists(st.floats(0.01, 1), min_size=1, max_size=5))
def test_the_papers_outcomes_are_those_about_the_last_token(chances: list[float], weights: list[float]) -> None:
    """HAT prepares only for the last drafted token to be replaced, or for all to stay."""
    alternatives = alternatives_of(weights, len(chances) + 1)
    everything = outcomes(chances, alternatives, 1000, "all")
    last = outcomes(chances, alternatives, 1000, "last")
    assert last == [each for each in everything if each.accepted >= len(chances) - 1]


def test_what_cannot_happen_is_not_prepared_for() -> None:
    """Neither a rejection of what is sure, nor a token of weight 0."""
    found = outcomes([1.0, 0.6], [[(1, 0.5)], [(2, 0.2), (3, 0.0)], []], 10, "all")
    assert [(each.accepted, each.token) for each in found] == [(1, 2)]
    assert outcomes([], [[]], 3, "last") == []
    assert outcomes([], [[(5, 0.4)]], 3, "last") == [Outcome(0, 5, 0.4)]
