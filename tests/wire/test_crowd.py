"""Who loses a place: whoever has been idle for longest among those who take most, and nobody who is busy."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.crowd import LEAST_PATIENCE_S, Crowd, party_of


def test_the_oldest_idle_one_of_a_full_party_goes() -> None:
    """Of its own party, however old others are."""
    crowd: Crowd[str] = Crowd(10, 2, 100.0)
    assert [crowd.enter(name, name[0], now) for now, name in enumerate(("b1", "a1", "a2"))] == [[], [], []]
    assert crowd.enter("a3", "a", 3.0) == ["a1"]
    assert len(crowd) == 3


def test_where_all_places_are_taken_the_party_with_most_gives_one() -> None:
    """Not the one who came first, if it is alone."""
    crowd: Crowd[str] = Crowd(4, 3, 100.0)
    for now, name in enumerate(("b1", "a1", "a2", "a3")):
        crowd.enter(name, name[0], now / 10)
    assert crowd.enter("c1", "c", 0.5) == ["a1"]
    crowd.leave("b1")
    crowd.leave("b1")
    assert crowd.enter("d1", "d", 0.6) == []


def test_who_is_busy_keeps_its_place() -> None:
    """Where all are, there is none for another; who is idle again is so from then on."""
    crowd: Crowd[str] = Crowd(2, 2, 100.0)
    for name in ("a", "b"):
        crowd.enter(name, name, 0.0)
        crowd.busy(name)
    assert crowd.enter("c", "c", 1.0) is None and len(crowd) == 2
    crowd.idle("b", 2.0)
    crowd.idle("a", 2.1)
    assert crowd.enter("c", "c", 2.5) == ["b"]
    crowd.idle("b", 2.6)
    assert len(crowd) == 2, "it has lost its place, whatever it does now"


def test_the_fuller_the_less_patience() -> None:
    """All of it while half of the places are free, then less, and a little for the last."""
    crowd: Crowd[int] = Crowd(100, 100, 10.0)
    patience = []
    for number in range(100):
        crowd.enter(number, "", 0.0)
        patience.append(crowd.patience_s)
    assert patience[49] == 10.0 and patience[74] == pytest.approx(5.5) and patience[99] == LEAST_PATIENCE_S
    assert patience == sorted(patience, reverse=True)
    assert sorted(crowd.enter(100, "", 2.0) or ()) == list(range(100)), "all of them were idle for too long"


@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "busy", "idle", "leave"]), st.integers(0, 20), st.integers(0, 3)),
        max_size=100,
    )
)
def test_places_are_never_more_than_there_are(steps: list[tuple[str, int, int]]) -> None:
    """Of all and of a party, whatever happens; only the idle lose theirs, and the newcomer never does."""
    crowd: Crowd[int] = Crowd(6, 3, 5.0)
    members: dict[int, str] = {}
    busy: set[int] = set()
    for now, (kind, member, party) in enumerate(steps):
        if kind == "enter" and member not in members:
            gone = crowd.enter(member, str(party), float(now))
            if gone is None:
                assert len(members) == 6 or Counter(members.values())[str(party)] == 3
                assert all(each in busy for each in members if len(members) < 6 and members[each] == str(party))
                continue
            assert not busy.intersection(gone) and member not in gone
            for each in gone:
                del members[each]
            members[member] = str(party)
        elif kind == "leave":
            crowd.leave(member)
            members.pop(member, None)
            busy.discard(member)
        elif member in members:
            (busy.add if kind == "busy" else busy.discard)(member)
            crowd.busy(member) if kind == "busy" else crowd.idle(member, float(now))
        assert len(crowd) == len(members) <= 6
        assert max(Counter(members.values()).values(), default=0) <= 3


@pytest.mark.parametrize(
    ("address", "party"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("testclient", "testclient"),
    ],
)
def test_whose_an_address_is(address: str, party: str) -> None:
    """An IPv4 address, an IPv6 site; what is no address is itself."""
    assert party_of(address) == party
