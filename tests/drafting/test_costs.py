"""What rounds cost, learned from what they take."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafting.costs import RoundCosts
from split_model.hints import Pace


def learned(costs: RoundCosts, round_s: float, row_s: float, rounds: int, seed: int = 0, spikes: float = 0.0) -> None:
    numbers = random.Random(seed)
    for _ in range(rounds):
        rows = numbers.randint(1, 9)
        seconds = (round_s + (rows - 1) * row_s) * numbers.uniform(0.9, 1.1)
        costs.verified(rows, seconds * (10 if numbers.random() < spikes else 1))


@pytest.mark.parametrize("round_s", [0.002, 0.02, 0.3])
@pytest.mark.parametrize("share", [0.02, 0.2, 1.0])
def test_both_are_learned_from_a_prior_that_is_far_off(round_s: float, share: float) -> None:
    """Ten times too high or too low, from a hundred verifications of different lengths with a tenth of noise."""
    costs = RoundCosts(0.03, 0.003)
    row_s = share * round_s
    learned(costs, round_s, row_s, 100)
    assert costs.round_s == pytest.approx(round_s, abs=0.1 * (round_s + 4 * row_s))
    assert costs.row_s == pytest.approx(row_s, rel=0.15, abs=0.02 * round_s)
    assert costs.round_s + 8 * costs.row_s == pytest.approx(round_s + 8 * row_s, rel=0.1)


def test_the_prior_holds_until_there_is_more() -> None:
    """And one verification does not throw it over."""
    costs = RoundCosts(0.03, 0.003)
    assert (costs.round_s, costs.row_s, costs.draft_s, costs.steps_while_waiting(4)) == (0.03, 0.003, 0.0, 0)
    costs.verified(5, 10.0)
    assert costs.round_s + 4 * costs.row_s < 2 * (0.03 + 4 * 0.003)


def test_a_spike_does_not_ruin_what_is_known() -> None:
    """One verification in fifty takes ten times as long: that is a queue, not a cost."""
    costs = RoundCosts(0.05, 0.003)
    learned(costs, 0.05, 0.003, 400, spikes=0.02)
    assert costs.round_s == pytest.approx(0.05, rel=0.1)
    assert costs.row_s == pytest.approx(0.003, abs=0.0015)
    costs.verified(3, 5.0)
    assert costs.round_s == pytest.approx(0.05, rel=0.15)


@pytest.mark.parametrize(("before", "after"), [(0.02, 0.1), (0.1, 0.02)])
def test_a_change_of_the_link_is_followed(before: float, after: float) -> None:
    """A hundred verifications on, nothing is left of what was."""
    costs = RoundCosts(before, 0.002)
    learned(costs, before, 0.002, 300)
    learned(costs, after, 0.002, 150, seed=1)
    assert costs.round_s == pytest.approx(after, rel=0.12)


def test_drafts_of_one_length_leave_the_share_of_a_row_alone() -> None:
    """Where nothing tells the two apart, what was known of a row stays, and their sum is right."""
    costs = RoundCosts(0.05, 0.001)
    learned(costs, 0.05, 0.004, 300)
    for _ in range(300):
        costs.verified(9, 0.1)
    assert costs.round_s + 8 * costs.row_s == pytest.approx(0.1, rel=0.03)
    assert 0.002 < costs.row_s < 0.007


@given(st.lists(st.tuples(st.integers(1, 25), st.floats(0, 100)), max_size=60))
def test_costs_are_always_times(verifications: list[tuple[int, float]]) -> None:
    """Over 0 for a round and never under for a row, whatever was measured."""
    costs = RoundCosts(0.03, 0.001)
    for rows, seconds in verifications:
        costs.verified(rows, seconds)
        assert 0 < costs.round_s < 1000 and 0 <= costs.row_s < 1000


def test_no_row_costs_less_than_the_link_takes() -> None:
    """Where the bandwidth is known; half of it known says half."""
    costs = RoundCosts(0.03, 0.001)
    costs.link(8192, Pace(None, 4096 * 1000, None))
    assert costs.row_s == pytest.approx(0.002)
    costs.link(8192, Pace(None, 4096 * 1000, 8192 * 1000))
    assert costs.row_s == pytest.approx(0.003)
    costs.link(8192, Pace())
    assert costs.row_s == pytest.approx(0.001)


def test_rows_go_one_by_one_where_they_arrive_so_anyway() -> None:
    """Where making or sending one takes a step of the cloud's; not while nobody knows what that takes."""
    costs = RoundCosts(0.03, 0.001)
    costs.drafted(0.004)
    assert not costs.one_by_one
    for step_s, up_bytes_s, expected in ((0.003, None, True), (0.005, None, False), (0.005, 8192 / 0.006, True)):
        costs.link(8192, Pace(step_s, up_bytes_s, None))
        assert costs.one_by_one == expected


def test_drafting_steps_are_smoothed() -> None:
    """A step that took long for another reason counts little."""
    costs = RoundCosts(0.03, 0.001)
    costs.drafted(0.02, steps=4)
    assert costs.draft_s == pytest.approx(0.005)
    costs.drafted(1.0)
    assert costs.draft_s < 0.007
    for _ in range(60):
        costs.drafted(0.01)
    assert costs.draft_s == pytest.approx(0.01, rel=0.02)


def test_steps_while_waiting_are_those_of_the_paper() -> None:
    """HAT Eq. 6: upload, cloud and download of the rows, over the time of a step, rounded down."""
    costs = RoundCosts(0.050, 0.002)
    costs.drafted(0.009)
    assert costs.steps_while_waiting(1) == 5
    assert costs.steps_while_waiting(6) == 6
    for _ in range(100):
        costs.verified(6, 0.030)
    assert costs.steps_while_waiting(6) == 3


@settings(max_examples=40)
@given(
    st.floats(0.0005, 0.008) | st.floats(0.07, 5.0),
    st.floats(0, 0.002),
    st.lists(st.integers(1, 25), min_size=4, max_size=12),
)
def test_another_machine_is_known_after_two_verifications(round_s: float, share: float, lengths: list[int]) -> None:
    """Where what was believed is far off, as where weights are read from a disk for each step: what is expected from
    the third on is within a third of the truth, between the fewest and the most rows that were sent; and none of a slow
    round is taken for the price of its rows."""
    costs, row_s = RoundCosts(0.02, 0.0005), share * round_s
    for number, rows in enumerate(lengths):
        seen = lengths[:number]
        if number > 2 and min(seen) <= rows <= max(seen):
            expected = costs.round_s + (rows - 1) * costs.row_s
            assert expected == pytest.approx(round_s + (rows - 1) * row_s, rel=0.35)
        costs.verified(rows, round_s + (rows - 1) * row_s)
    assert costs.row_s <= max(0.0006, row_s + 0.05 * round_s)


@given(st.lists(st.booleans(), max_size=30), st.floats(3, 100))
def test_what_is_far_off_but_once_is_noise(spikes: list[bool], times: float) -> None:
    """It counts as one verification, and not before another says the same."""
    costs = RoundCosts(0.05, 0.001)
    for _ in range(50):
        costs.verified(3, 0.052)
    before = False
    for spike in spikes:
        spike, before = spike and not before, spike and not before
        costs.verified(3, 0.052 * times if spike else 0.052)
        assert costs.round_s + 2 * costs.row_s < 2 * 0.052
