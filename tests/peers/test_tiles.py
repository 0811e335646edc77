"""Shares and tiles: every row is in one tile, and every share goes once round."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peers.tiles import Ring, evenly, joined, tiles_of

SHARES = st.lists(st.integers(0, 40), min_size=1, max_size=7).map(tuple)


@given(SHARES, st.integers(1, 9))
def test_each_row_is_in_one_tile(shares: tuple[int, ...], pieces: int) -> None:
    """Tiles follow each other without a gap, in the share of their owner; none is empty, and numbers are unlike."""
    tiles = tiles_of(shares, pieces)
    assert [row for tile in tiles for row in range(tile.begin, tile.end)] == list(range(sum(shares)))
    assert len({tile.number for tile in tiles}) == len(tiles)
    for place, rows in enumerate(shares):
        own = [tile for tile in tiles if tile.place == place]
        sizes = [tile.end - tile.begin for tile in own]
        assert sum(sizes) == rows and len(own) == min(rows, pieces)
        assert not sizes or max(sizes) - min(sizes) <= 1


@given(SHARES, st.integers(1, 9), st.randoms(use_true_random=False))
def test_tiles_that_are_there_are_joined(shares: tuple[int, ...], pieces: int, random: Random) -> None:
    """Of any of the tiles, in any order, every row is in one range, and no two ranges touch."""
    tiles = [tile for tile in tiles_of(shares, pieces) if random.random() < 0.7]
    random.shuffle(tiles)
    ranges = joined(tiles)
    rows = [row for tile in sorted(tiles) for row in range(tile.begin, tile.end)]
    assert [row for each in ranges for row in each] == rows
    assert all(one.stop < other.start for one, other in pairwise(ranges))


@given(st.integers(0, 1000), st.integers(1, 9))
def test_even_shares(rows: int, shares: int) -> None:
    """They add up, and differ by one at most."""
    found = evenly(rows, shares)
    assert sum(found) == rows and len(found) == shares and max(found) - min(found) <= 1


@given(st.integers(1, 8))
def test_each_share_goes_once_round(size: int) -> None:
    """At each step all send different shares, each to a neighbour that wants it; everyone is given its own last."""
    rings = [Ring(tuple(range(10, 10 + size)), place) for place in range(size)]
    orders = [ring.given_order() for ring in rings]
    for step in range(size):
        assert sorted(order[step] for order in orders) == list(range(size))
    for place, (ring, order) in enumerate(zip(rings, orders, strict=True)):
        assert order[-1] == place == ring.summed_order()[-1]
        assert sorted(ring.summed_order()) == sorted(order) == list(range(size))
        behind = orders[(place + 1) % size]
        assert order[:-1] == behind[1:]  # What one sends at a step its neighbour adds to at the next.
        assert ring.behind == rings[(place + 1) % size].ranks[(place + 1) % size]
        assert sorted([*ring.others, ring.ranks[place]]) == sorted(ring.ranks)


@pytest.mark.parametrize(("shares", "pieces"), [((3, -1), 1), ((3,), 0)])
def test_shares_that_cannot_be(shares: tuple[int, ...], pieces: int) -> None:
    """A negative share, or no piece, is refused."""
    with pytest.raises(ValueError):
        tiles_of(shares, pieces)
