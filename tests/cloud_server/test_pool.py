"""Pages of keys and values: where positions lie, and what a step writes."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cloud_server.cache.batch import PagedBatch
from cloud_server.cache.moving import NOWHERE
from cloud_server.cache.pool import KVPool
from cloud_server.cache.pool_attention import SdpaBackend
from cloud_server.cache.span import PagedSpan
from split_model.new_rows import positions_of
from split_model.rope import Rope
from split_model.rope_spec import RopeSpec
from split_model.tree import Tree

LAYERS, HEADS, DIM, PAGES, PAGE = 2, 3, 4, 12, 5


def new_pool() -> KVPool:
    pool = KVPool(LAYERS, HEADS, DIM, torch.float32, "cpu", PAGES, PAGE)
    pool.keys.zero_()
    pool.values.zero_()
    return pool


@given(st.permutations(range(PAGES)), st.integers(0, PAGES * PAGE))
def test_runs_are_the_slots_of_all_positions_in_order(pages: list[int], end: int) -> None:
    """Whatever the pages: position p is in page p // size, and no two runs could be one."""
    runs = new_pool().runs(PagedSpan(pages, 0, end))
    slots = [slot for run in runs for slot in run]
    assert slots == [pages[position // PAGE] * PAGE + position % PAGE for position in range(end)]
    assert all(run for run in runs)
    assert all(left.stop != right.start for left, right in pairwise(runs))


@pytest.mark.parametrize("pages", [(1,), (1, PAGES), (1, -1)])
def test_pages_that_do_not_hold_a_span_are_refused(pages: tuple[int, ...]) -> None:
    """Too few pages, or pages of no pool, are an error before anything is written."""
    pool = new_pool()
    with pytest.raises(ValueError, match="page"):
        PagedBatch(pool, [PagedSpan((0,), 0, 1), PagedSpan(pages, PAGE - 1, 2)], SdpaBackend())
    assert not pool.keys.any()


def test_a_step_writes_its_rows_and_nothing_else() -> None:
    """Every row's key and value is in its slot of its layer; all other slots are as they were."""
    pool = new_pool()
    spans = [PagedSpan((7, 2), 3, 4), PagedSpan((5,), 0, 0), PagedSpan((0,), 4, 1)]
    slots = [7 * PAGE + 3, 7 * PAGE + 4, 2 * PAGE, 2 * PAGE + 1, 4]
    k, v = torch.randn(2, 5, HEADS, DIM)
    batch = PagedBatch(pool, spans, SdpaBackend())
    assert batch.rows == 5
    batch.attend(1, None, torch.randn(5, HEADS, DIM), k, v)
    for store, rows in ((pool.keys, k), (pool.values, v)):
        wanted = torch.zeros(LAYERS, PAGES * PAGE, HEADS, DIM)
        wanted[1, slots] = rows
        assert torch.equal(store, wanted)


def test_what_is_moved_is_read_before_it_is_written() -> None:
    """In every layer, keys and values alike, also where one slot is left by one row and taken by another."""
    pool = new_pool()
    pool.keys.normal_()
    pool.values.normal_()
    before = [store.clone() for store in (pool.keys, pool.values)]
    pool.move([(11, 10, 1), (12, 11, 1), (30, 12, 1), (10, 59, 1)])
    for store, old in zip((pool.keys, pool.values), before, strict=True):
        wanted = old.clone()
        wanted[:, [10, 11, 12, 59]] = old[:, [11, 12, 30, 10]]
        assert torch.equal(store, wanted)
    with pytest.raises(ValueError, match="slot"):
        pool.move([(0, 1, 1), (2, PAGES * PAGE, 1)])
    assert torch.equal(pool.keys[:, 1], before[0][:, 1])


def test_what_comes_from_nowhere_is_nought() -> None:
    """In every layer, keys and values alike, NaN too, and after what is moved."""
    pool = new_pool()
    for store in (pool.keys, pool.values):
        store.fill_(math.nan)
        store[:, 5] = 1.0
    pool.move([(NOWHERE, 5, 1), (5, 6, 1), (4, 7, 1), (NOWHERE, 7, 1), (4, 20, 3), (NOWHERE, 21, 2)])
    for store in (pool.keys, pool.values):
        assert not store[:, [5, 7, 21, 22]].any() and bool((store[:, 6] == 1).all()) and bool(store[:, 4].isnan().all())
    with pytest.raises(ValueError, match="slot"):
        pool.move([(5, NOWHERE, 1)])


def test_pieces_are_moved_in_order() -> None:
    """In every layer: what was moved is there for who moves it on, a slot has what came last, and single slots count as
    any others."""
    pool = new_pool()
    pool.keys.normal_()
    pool.values.normal_()
    before = [store.clone() for store in (pool.keys, pool.values)]
    pool.move([(0, 20, 6), (40, 10, 1), (41, 10, 1), (22, 30, 3), (8, 21, 2), (50, 31, 1)])
    for store, old in zip((pool.keys, pool.values), before, strict=True):
        wanted = old.clone()
        wanted[:, 20:26] = old[:, 0:6]
        wanted[:, 10] = old[:, 41]
        wanted[:, 30:33] = old[:, 2:5]
        wanted[:, 21:23] = old[:, 8:10]
        wanted[:, 31] = old[:, 50]
        assert torch.equal(store, wanted)
    for wrong in ((0, 5, 6), (PAGES * PAGE - 2, 0, 3), (0, PAGES * PAGE - 2, 3), (0, 9, 0), (-2, 9, 2)):
        with pytest.raises(ValueError):
            pool.move([(0, 40, 3), wrong])
    assert torch.equal(pool.keys[:, 40:43], before[0][:, 40:43])


def test_rows_that_branch_turn_by_their_positions() -> None:
    """Where they stand in the text, not where they are stored; also those of the halves."""
    rope = Rope(RopeSpec.from_config({"rope_theta": 10000.0}, DIM, 1000), torch.float32)
    pool = new_pool()
    span = PagedSpan((7, 2), 4, 5, Tree(4).add([-1, -1, 0, 2, 1]))
    positions = [4, 4, 5, 6, 5]
    assert list(positions_of(span)) == positions
    assert [each for half in span.halves() for each in positions_of(half)] == positions
    found = PagedBatch(pool, [span], SdpaBackend()).look_up(rope)
    for table, wanted in zip(found, rope.positions(torch.tensor(positions)), strict=True):
        assert torch.equal(table, wanted)


def test_rotations_are_those_of_each_position() -> None:
    """A span's rows turn by their absolute positions, also beyond the first table."""
    rope = Rope(RopeSpec.from_config({"rope_theta": 10000.0}, DIM, 1000), torch.float32)
    pool = KVPool(1, 1, DIM, torch.float32, "cpu", 80, PAGE)
    spans = [PagedSpan(range(80), 297, 3), PagedSpan(range(80), 2, 1)]
    found = PagedBatch(pool, spans, SdpaBackend()).look_up(rope)
    for table, of_first, of_second in zip(found, rope.span(297, 3), rope.span(2, 1), strict=True):
        assert torch.equal(table, torch.cat((of_first, of_second)))


def test_the_size_is_known_before_the_pool_is_there() -> None:
    """Pages times the bytes of a page are the bytes of the pool."""
    each = KVPool.bytes_of_page(LAYERS, HEADS, DIM, torch.float32, PAGE)
    assert new_pool().nbytes == PAGES * each == 4 * 2 * LAYERS * HEADS * DIM * PAGES * PAGE
