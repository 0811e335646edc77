"""The contiguous cache: append, advance, truncate, limits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from split_model.kv_cache import CacheFull, KVCache

LAYERS, HEADS, DIM, LIMIT = 2, 3, 4, 300


def rows_of(value: int, count: int) -> torch.Tensor:
    """Rows that can be told apart: [count, heads, dim]."""
    return (torch.arange(count * HEADS * DIM, dtype=torch.float32) + 1000.0 * value).view(count, HEADS, DIM)


def append_all(cache: KVCache, value: int, count: int) -> None:
    for layer in range(cache_layers(cache)):
        cache.append(layer, rows_of(value + layer, count), -rows_of(value + layer, count))
    cache.advance(count)


def held(cache: KVCache, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a layer: what a step without rows is shown."""
    return cache.append(layer, rows_of(0, 0), rows_of(0, 0))


def cache_layers(cache: KVCache) -> int:
    return len(cache._keys)


def new_cache(limit: int = LIMIT, layers: int = LAYERS) -> KVCache:
    return KVCache(layers, HEADS, DIM, torch.float32, limit)


@given(st.lists(st.tuples(st.integers(0, 70), st.floats(0, 1)), max_size=12))
def test_truncated_rows_leave_no_trace(steps: list[tuple[int, float]]) -> None:
    """After any appends and truncations the cache holds what a list of rows would."""
    cache = new_cache()
    expected = torch.empty((LAYERS, 0, HEADS, DIM))
    for value, (count, kept) in enumerate(steps):
        if cache.length + count > LIMIT:
            with pytest.raises(CacheFull):
                cache.reserve(count)
            continue
        append_all(cache, value, count)
        new = torch.stack([rows_of(value + layer, count) for layer in range(LAYERS)])
        expected = torch.cat((expected, new), 1)
        position = int(kept * cache.length)
        cache.truncate(position)
        expected = expected[:, :position]
        assert cache.length == position
        for layer in range(LAYERS):
            keys, values = held(cache, layer)
            assert torch.equal(keys.transpose(0, 1), expected[layer])
            assert torch.equal(values.transpose(0, 1), -expected[layer])


@pytest.mark.parametrize("position", [0, 1, 40, 70])
def test_a_cache_that_begins_as_another_is_a_copy(position: int) -> None:
    """It has the first rows and the limit of the other; what either is given then, the other does not see."""
    source, copy = new_cache(), new_cache(limit=0)
    append_all(source, 1, 70)
    kept = [held(source, layer)[0][:, :position].clone() for layer in range(LAYERS)]
    copy.begin_as(source, position)
    assert (copy.length, copy.capacity_limit) == (position, LIMIT)
    taken = copy.nbytes
    append_all(copy, 5, 3)
    assert position == 0 or copy.nbytes == taken, "there was room for rows behind them"
    source.truncate(position // 2)
    append_all(source, 7, 20)
    for layer in range(LAYERS):
        assert torch.equal(held(copy, layer)[0], torch.cat([kept[layer], rows_of(5 + layer, 3).transpose(0, 1)], 1))
        assert torch.equal(held(copy, layer)[1], -held(copy, layer)[0])
        assert torch.equal(held(source, layer)[0][:, : position // 2], kept[layer][:, : position // 2])


def test_a_cache_cannot_begin_with_rows_that_are_not_there() -> None:
    """It stays as it was: without room for a row, where it was made so."""
    source, copy = new_cache(), new_cache(limit=0)
    append_all(source, 1, 5)
    for position in (-1, 6):
        with pytest.raises(ValueError, match="cannot begin"):
            copy.begin_as(source, position)
    with pytest.raises(CacheFull):
        copy.reserve(1)


def test_append_returns_all_rows_so_far_and_counts_none() -> None:
    """A layer's views include the new rows; the length moves only when the step advances."""
    cache = new_cache()
    append_all(cache, 1, 5)
    keys, values = cache.append(0, rows_of(9, 2), rows_of(8, 2))
    assert keys.shape == values.shape == (HEADS, 7, DIM)
    assert torch.equal(keys[:, 5:].transpose(0, 1), rows_of(9, 2))
    assert torch.equal(values[:, 5:].transpose(0, 1), rows_of(8, 2))
    assert cache.length == 5
    append_all(cache, 3, 1)
    assert torch.equal(held(cache, 0)[0][:, 5:].transpose(0, 1), rows_of(3, 1))


def test_memory_grows_by_doubling_up_to_the_limit() -> None:
    """An empty cache takes nothing; bytes allocated at most double what is held, and stop at the limit."""
    cache = new_cache()
    row = LAYERS * 2 * HEADS * DIM * 4
    assert cache.nbytes == 0
    sizes = []
    for value in range(LIMIT):
        append_all(cache, value, 1)
        sizes.append(cache.nbytes // row)
    assert sorted(set(sizes)) == [64, 128, 256, LIMIT]


def test_a_full_cache_refuses_and_stays_as_it_is() -> None:
    """CacheFull, from reserve, append and advance, changes nothing."""
    cache = new_cache(limit=3)
    append_all(cache, 1, 3)
    before = held(cache, 0)[0].clone(), cache.nbytes
    for refused in (
        lambda: cache.reserve(1),
        lambda: cache.append(0, rows_of(2, 1), rows_of(2, 1)),
        lambda: cache.advance(1),
    ):
        with pytest.raises(CacheFull):
            refused()
    assert cache.length == 3 and not cache.can_append(1) and cache.can_append(0)
    assert torch.equal(held(cache, 0)[0], before[0]) and cache.nbytes == before[1]


def test_no_layers_still_count_positions() -> None:
    """A stack without layers advances and truncates like any other, and takes no bytes."""
    cache = new_cache(layers=0)
    cache.advance(7)
    cache.truncate(4)
    assert (cache.length, cache.nbytes) == (4, 0)


@pytest.mark.parametrize("position", [-1, 6])
def test_truncation_outside_the_cache_is_refused(position: int) -> None:
    """Positions before 0 or past the length are ValueErrors."""
    cache = new_cache()
    append_all(cache, 1, 5)
    with pytest.raises(ValueError, match="truncate"):
        cache.truncate(position)
    with pytest.raises(ValueError, match="capacity_limit"):
        new_cache(limit=-1)


@given(st.integers(1, 70), st.data())
def test_oldest_rows_go_and_come_back(rows: int, data: st.DataObject) -> None:
    """What is dropped at the front and put there again leaves the cache as it was, also with new rows between; dropped
    rows take no memory."""
    cache = KVCache(1, 2, 3, torch.float32, capacity_limit=200)
    made = torch.randn((2, rows + 5, 2, 3), generator=torch.Generator().manual_seed(rows))
    cache.append(0, *made[:, :rows])
    cache.advance(rows)
    before = cache.nbytes
    gone = data.draw(st.integers(0, rows))
    cache.drop_oldest(gone)
    assert cache.length == rows - gone and before - cache.nbytes == made[:, :gone].nbytes
    cache.append(0, *made[:, rows:])
    cache.advance(5)
    torch.testing.assert_close(torch.stack(cache.read(0)), made[:, gone:].transpose(1, 2))
    last = data.draw(st.integers(0, gone))
    for part in (slice(last, gone), slice(0, last)):
        cache.put_before(*made[:, part])
    torch.testing.assert_close(torch.stack(cache.read(0)), made.transpose(1, 2))
    with pytest.raises(ValueError, match="cannot drop"):
        cache.drop_oldest(rows + 6)
    with pytest.raises(CacheFull):
        cache.put_before(torch.zeros((200, 2, 3)), torch.zeros((200, 2, 3)))
