"""Who takes part in a group: the count, the names, the order, and what faults cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.group.formation.roll import FIRST_WAIT_S, FORGIVEN_S, LONGEST_WAIT_S, Roll

NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(NAMES, st.integers(1, 6), st.booleans(), NAMES)
def test_as_many_as_are_wanted(here: list[str], wanted: int, computes: bool, working: list[str]) -> None:
    """The portal first, then who came first; never more than wanted; nobody who works makes room for another."""
    found = Roll(wanted, "portal", computes).taking_part(here, 0.0, working)
    assert len(found) == min(wanted, len(here) + computes) and len(set(found)) == len(found)
    others = found[1:] if computes else found
    assert (found[:1] == ("portal",)) == computes
    assert list(others) == [name for name in here if name in others]
    left = [name for name in here if name not in others]
    assert not any(name in working for name in left) or all(name in working for name in others)


@given(NAMES, NAMES)
def test_exactly_these(here: list[str], wanted: list[str]) -> None:
    """In the order in which they are wanted, whatever the order in which they come; nobody else."""
    if wanted:
        roll = Roll(wanted, "portal", False)
        assert roll.taking_part(here, 0.0) == tuple(name for name in wanted if name in here)
        assert all(roll.state(name, True, 0.0)[0] == "excluded" for name in here if name not in wanted)


@given(st.lists(st.integers(1, 2 * int(FORGIVEN_S)).map(float), min_size=1, max_size=12))
def test_faults_cost_time(after: list[float]) -> None:
    """The first nothing, each that follows soon twice as much as the last, up to a bound; old ones nothing again."""
    roll, now, row = Roll(1, "portal", False), 0.0, 0
    for pause in after:
        now += pause
        row = row + 1 if row and pause < FORGIVEN_S else 1
        roll.failed("a", "it was gone", now)
        wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (row - 2)) if row > 1 else 0.0
        assert roll.taking_part(["a"], now + wait) == ("a",)
        if wait:
            assert roll.taking_part(["a"], now + wait - 0.01) == () and roll.next_change(now) == now + wait
            assert roll.state("a", True, now)[0] == "excluded"


def test_the_slow_and_the_refused_wait() -> None:
    """Who was slow until it is fast; who refused until it comes anew."""
    roll = Roll(2, "portal", True)
    roll.is_slow("portal", "three times as long")
    roll.refuses("b", "another model")
    assert roll.taking_part(["a", "b", "c"], 0.0) == ("a", "c")
    assert roll.state("portal", True, 0.0) == ("slow", "three times as long")
    assert roll.state("b", True, 0.0) == ("excluded", "another model")
    assert roll.state("b", False, 0.0)[0] == "excluded" and roll.state("x", False, 0.0)[0] == "lost"
    roll.is_fast("portal")
    roll.came("b")
    assert roll.taking_part(["b"], 0.0) == ("portal", "b") and not roll.has_refused("b")


def test_who_refuses_and_comes_again_and_again_waits() -> None:
    """What starts it anew each time does not end the group's life each time."""
    roll = Roll(2, "portal", True)
    for _ in range(2):
        roll.failed("a", "too little memory", 10.0)
        roll.refuses("a", "too little memory")
        assert roll.taking_part(["a"], 10.0) == ("portal",)
        roll.came("a")
    assert roll.taking_part(["a"], 10.0) == ("portal",)
    assert "too little memory; it may come back" in roll.state("a", True, 10.0)[1]
    assert roll.taking_part(["a"], 10.0 + FIRST_WAIT_S) == ("portal", "a")


@pytest.mark.parametrize("wanted", [0, (), ("a", "a")])
def test_a_group_of_nobody_is_none(wanted: object) -> None:
    """Nor is one that wants somebody twice."""
    with pytest.raises(ValueError):
        Roll(wanted, "portal", True)  # type: ignore[arg-type]
