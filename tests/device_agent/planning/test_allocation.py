"""LIME's offline allocation: exactly the cheapest by its own cost."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.planning.allocation import MemberRoom, allocate, ways
from device_agent.planning.residency import Residency, Sizes, fewest, residencies

SIZES = Sizes(attention=4, mlp=9, matrix=6)

rooms = st.builds(
    MemberRoom,
    attention_s=st.floats(0.01, 1),
    mlp_s=st.floats(0.01, 1),
    hop_s=st.floats(0, 1),
    read_bytes_s=st.one_of(st.just(0.0), st.floats(1, 100)),
    memory=st.integers(0, 60),
    layer_extra=st.integers(0, 3),
)


@given(st.lists(rooms, min_size=1, max_size=3), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_nothing_is_cheaper(members: list[MemberRoom], layers: int, segments: int, micro_batches: int) -> None:
    """Of all ways to hand out the layers and to hold them none costs less, and where there is one, one is found."""
    held = [
        [way for count in range(layers + 1) for way in ways(room, count, segments, SIZES, micro_batches)]
        for room in members
    ]
    costs = [
        max(sum(way.passing for way in chosen), *(way.bound for way in chosen))
        for chosen in product(*held)
        if sum(way.layers for way in chosen) == layers
    ]
    found = allocate(members, layers, segments, SIZES, micro_batches)
    assert (found is None) == (not costs)
    if found is not None:
        assert found.seconds == pytest.approx(min(costs))
        assert sum(way.layers for way in found.members) == layers


@given(st.integers(1, 8), st.integers(0, 110))
def test_no_fewer_bytes_can_be_streamed(layers: int, needed: int) -> None:
    """Eq. 6, beside all numbers of attentions and MLPs."""
    every = [(a, m) for a in range(layers + 1) for m in range(layers + 1) if 4 * a + 9 * m >= needed]
    found = fewest(layers, SIZES, needed)
    assert (found is None) == (not every)
    if found is not None:
        assert 4 * found[0] + 9 * found[1] == min(4 * a + 9 * m for a, m in every)


@given(st.integers(1, 10), st.integers(1, 4), st.integers(-20, 140), st.booleans())
def test_what_stays_and_the_ring_fit(layers: int, stages: int, free: int, held: bool) -> None:
    """In all ways, and all stays where it can; the ring has room for each unit that it must take."""
    found = residencies(layers, stages, SIZES, free, held)
    if layers * SIZES.layer <= free:
        assert found == (Residency(),)
    for way in found:
        assert layers * SIZES.layer - way.streamed(SIZES) + way.ring_bytes <= free
        assert max(way.attentions, way.mlps) <= layers
        if way.streamed(SIZES):
            largest = SIZES.mlp if way.mlps else SIZES.attention
            assert way.ring_bytes >= way.room(SIZES) >= largest
            assert not held or way.ring_bytes >= largest + SIZES.matrix


def test_a_slot_makes_room_for_all_its_stages_but_one() -> None:
    """Eq. 7: with #Seg stages that share a place, #Seg - 1 units of memory become free. 8 layers in 4 stages, of which
    one layer's MLPs do not fit: one place of three is what the paper's slots take, four MLPs are streamed."""
    whole = 8 * SIZES.layer
    found = residencies(8, 4, SIZES, whole - 3 * SIZES.mlp, False)
    assert Residency(0, 4, SIZES.mlp) in found
