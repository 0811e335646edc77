"""Runs of blocks for devices, against all ways to hand them out."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.planning.block_allocation import (
    BlockDevice,
    NoRoom,
    Runs,
    block_seconds,
    by_block_seconds,
    by_efficiency,
    exactly,
    seconds,
)
from device_agent.planning.shares import all_ways

devices_lists = st.lists(
    st.builds(BlockDevice, st.integers(0, 6), st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=4
)
hop_tables = st.lists(st.lists(st.floats(0, 5), min_size=5, max_size=5), min_size=5, max_size=5)


def all_runs(layers: int, devices: list[BlockDevice]) -> list[Runs]:
    """Every set of devices in every order, with every number of blocks for which there is room."""
    return [
        tuple(zip(order, counts, strict=True))
        for used in range(1, len(devices) + 1)
        for order in permutations(range(len(devices)), used)
        for counts in all_ways(layers, used)
        if all(0 < count <= devices[at].room for at, count in zip(order, counts, strict=True))
    ]


@given(st.integers(1, 6), devices_lists, hop_tables)
def test_no_way_to_hand_out_blocks_is_faster(layers: int, devices: list[BlockDevice], table: list[list[float]]) -> None:
    """Neither with hops, nor by the paper's sum, which has none; and the paper's own order never beats it."""
    hop_s = [row[: len(devices) + 1] for row in table[: len(devices) + 1]]
    ways = all_runs(layers, devices)
    if not ways:
        for allocation in (by_efficiency, by_block_seconds):
            with pytest.raises(NoRoom):
                allocation(layers, devices)
        with pytest.raises(NoRoom):
            exactly(layers, devices, hop_s)
        return
    found = exactly(layers, devices, hop_s)
    assert found in ways
    assert seconds(found, devices, hop_s) == pytest.approx(min(seconds(way, devices, hop_s) for way in ways))
    least = min(seconds(way, devices) for way in ways)
    assert seconds(by_block_seconds(layers, devices), devices) == pytest.approx(least)
    published = by_efficiency(layers, devices)
    assert published in ways and seconds(published, devices) >= least - 1e-9


def test_efficiency_per_storage_prefers_the_small_device() -> None:
    """Eq. 2's own ranking takes a slow device with little room before a fast one with much."""
    work, weights = 2.0, 3.0
    slow, fast = (BlockDevice(room, f, block_seconds(work, weights, f, 6.0)) for room, f in ((2, 1.0), (12, 4.0)))
    assert (slow.block_s, fast.block_s) == (2.5, 1.0)
    assert by_efficiency(10, [fast, slow]) == ((1, 2), (0, 8))
    assert by_block_seconds(10, [fast, slow]) == ((0, 10),)
