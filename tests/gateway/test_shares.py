"""Sharing among tenants: counts in, counts out."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.shares import gives_way, granted, next_in_turn, within_share

tenants = st.sampled_from("abcde")


def filled(capacity: int, asked: Any) -> Counter[str]:
    """What each tenant holds after these requests, one after the other, none of which ever ends."""
    held: Counter[str] = Counter()
    for tenant, wanted in asked:
        held[tenant] += granted(wanted, held[tenant], capacity - held.total(), alone=False)
    return held


def test_one_greedy_tenant_gets_three_quarters_and_two_three_sevenths() -> None:
    """However it asks: one choice after another, or all at once."""
    assert filled(32, [("a", 128)] * 3) == filled(32, [("a", 1)] * 99) == {"a": 24}
    assert filled(35, [("a", 1), ("b", 1)] * 99) == {"a": 15, "b": 15}
    assert filled(32, [("a", 128), ("b", 5), ("c", 1)]) == {"a": 24, "b": 5, "c": 1}


def test_whoever_is_alone_gets_all() -> None:
    """As much as there is."""
    assert granted(128, 0, 32, alone=True) == 32
    assert granted(3, 31, 1, alone=True) == 1
    assert granted(3, 32, 0, alone=True) == granted(3, 40, -8, alone=True) == 0


@given(capacity=st.integers(1, 64), asked=st.lists(st.tuples(tenants, st.integers(1, 128)), max_size=40))
def test_never_more_than_there_is_and_always_something_for_a_newcomer(capacity: Any, asked: Any) -> None:
    """Whoever holds nothing gets one where one is free, and who is alone never takes the last of several."""
    held = filled(capacity, asked)
    assert held.total() <= capacity
    free = capacity - held.total()
    assert granted(128, 0, free, alone=False) >= min(free, 1)
    for tenant in +held:
        assert held[tenant] == 1 or within_share(held[tenant], capacity - held[tenant])
    if len(+held) == 1 and capacity > 1:
        assert free >= 1


@given(wanted=st.integers(1, 128), held=st.integers(0, 64), free=st.integers(-8, 64), alone=st.booleans())
def test_what_is_granted_is_the_most_that_leaves_enough(wanted: Any, held: Any, free: Any, alone: Any) -> None:
    """One more would be more than wanted, than there is, or than the share."""
    count = granted(wanted, held, free, alone=alone)
    assert 0 <= count <= max(0, min(wanted, free))
    if not alone and count > (0 if held else 1):
        assert within_share(held + count, free - count)
    if count < min(wanted, free):
        assert not alone and not within_share(held + count + 1, free - count - 1)


@given(places=st.dictionaries(tenants, st.integers(1, 9)), newcomer=tenants)
def test_who_gives_way_has_most_and_is_left_with_no_less(places: Any, newcomer: Any) -> None:
    """So that no two tenants ever push each other out in turns."""
    loser = gives_way(places, newcomer)
    if loser is None:
        assert all(count <= places.get(newcomer, 0) + 1 for count in places.values())
    else:
        assert loser != newcomer and places[loser] == max(places.values())
        assert places[loser] - 1 >= places.get(newcomer, 0) + 1


def test_turns() -> None:
    """Who holds least, and of those the first."""
    assert next_in_turn("abc", {"a": 2, "b": 1, "c": 1}) == "b"
    assert next_in_turn("abc", {"a": 2, "b": 1}) == "c"
    assert next_in_turn("", {}) is None
