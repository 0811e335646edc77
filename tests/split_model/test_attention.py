"""The attention seam against the formula, written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from split_model import attention
from split_model.attention import FOLD_ROWS, Sight, attend, attend_in, branching_sight, sight
from split_model.tree import Tree

HEADS = [(4, 4), (4, 2), (4, 1)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.03}


def by_formula(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, window: int | None
) -> torch.Tensor:
    """Row by row and head by head, in float64."""
    rows, heads, dim = q.shape
    group = heads // keys.shape[0]
    out = torch.zeros((rows, heads, dim), dtype=torch.float64)
    for row in range(rows):
        position = start + row
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(heads):
            seen = keys[head // group, first : position + 1].double()
            weights = (seen @ q[row, head].double() / math.sqrt(dim)).softmax(0)
            out[row, head] = weights @ values[head // group, first : position + 1].double()
    return out.view(rows, heads * dim).float()


@given(
    st.integers(1, 9),
    st.integers(0, 12),
    st.sampled_from([(1, 1), (4, 2), (6, 3), (4, 1)]),
    st.none() | st.integers(1, 25),
    st.integers(0, 1000),
)
def test_attention_is_the_formula(rows: int, start: int, heads: tuple[int, int], window: int | None, seed: int) -> None:
    """Any rows, start, grouping and window: within 1e-5 of the formula in float64."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(rows, heads[0], 8, generator=generator)
    keys, values = torch.randn(2, heads[1], start + rows, 8, generator=generator)
    found = attend(q, keys, values, start, window)
    torch.testing.assert_close(found, by_formula(q, keys, values, start, window), rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_shard_without_heads_has_an_empty_context(rows: int) -> None:
    """A device that holds none of the heads still takes part."""
    empty = torch.empty(0, rows, 8)
    assert attend(torch.empty(rows, 0, 8), empty, empty, 0, None).shape == (rows, 0)


def test_bfloat16_stays_bfloat16() -> None:
    """The context has q's dtype and is as exact as that allows."""
    q, keys = torch.randn(5, 4, 8).bfloat16(), torch.randn(2, 9, 8).bfloat16()
    found = attend(q, keys, keys, 4, 3)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), by_formula(q, keys, keys, 4, 3), rtol=0, atol=0.05)


def drawn(rows: int, length: int, heads: tuple[int, int], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Queries of so many rows, and keys and values of so many positions, laid out as a pool of pages has them."""
    generator = torch.Generator().manual_seed(rows)
    q = torch.randn(rows, heads[0], 8, generator=generator).to(dtype)
    keys, values = torch.randn(2, length, heads[1], 8, generator=generator).to(dtype)
    return q, keys.transpose(0, 1), values.transpose(0, 1)


def check_fold(
    monkeypatch: pytest.MonkeyPatch, seen: Sight, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """The context, which is the same as with every row folded and as with none."""
    found = attend_in(seen, q, keys, values)
    assert found.dtype == q.dtype
    for most in (0, len(q)):
        with monkeypatch.context() as patch:
            patch.setattr(attention, "FOLD_ROWS", most)
            other = attend_in(seen, q, keys, values)
        torch.testing.assert_close(found, other, rtol=0, atol=TOLERANCE[q.dtype])
    return found


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("window", [None, 1, 7, 70])
def test_folded_rows_are_rows(
    monkeypatch: pytest.MonkeyPatch, window: int | None, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    """One to more rows than are folded, behind a trunk: the same folded or not, and the formula."""
    start = 19
    for rows in (1, 2, 3, 31, FOLD_ROWS - 1, FOLD_ROWS, FOLD_ROWS + 1, 80):
        q, keys, values = drawn(rows, start + rows, heads, dtype)
        seen = sight(start, rows, window, dtype, "cpu")
        in_sight = [each.narrow(1, seen.first, seen.length) for each in (keys, values)]
        found = check_fold(monkeypatch, seen, q, *in_sight)
        wanted = by_formula(q, keys, values, start, window)
        torch.testing.assert_close(found.float(), wanted, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("window", [None, 7])
def test_folded_rows_that_branch_are_rows(
    monkeypatch: pytest.MonkeyPatch, window: int | None, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    """Binary trees behind a trunk, folded or not: each row is the end of the line that leads to it."""
    trunk = 19
    for rows in (3, FOLD_ROWS, FOLD_ROWS + 1, 80):
        branching = Tree(trunk).add([-1, -1, *(each // 2 for each in range(rows - 2))])
        assert branching is not None
        q, keys, values = drawn(rows, trunk + rows, heads, dtype)
        found = check_fold(monkeypatch, branching_sight(branching, window, dtype, "cpu"), q, keys, values)
        wanted = []
        for row, path in enumerate(branching.seen):
            line = [*range(trunk), *(trunk + node for node in path)]
            wanted.append(by_formula(q[row : row + 1], keys[:, line], values[:, line], len(line) - 1, window))
        torch.testing.assert_close(found.float(), torch.cat(wanted), rtol=0, atol=TOLERANCE[dtype])


def test_keys_are_read_once_for_the_heads_that_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to so many rows the heads of a group are rows of one product; of more rows, or alone, a head is its own."""
    products: list[tuple[int, ...]] = []

    def watched(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **options: object) -> torch.Tensor:
        products.append(tuple(q.shape))
        return scaled_dot_product_attention(q, keys, values, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(attention, "scaled_dot_product_attention", watched)
    for rows, heads in ((FOLD_ROWS, (4, 2)), (FOLD_ROWS + 1, (4, 2)), (FOLD_ROWS, (4, 4))):
        q, keys, values = drawn(rows, 5 + rows, heads, torch.float32)
        attend(q, keys, values, 5, None)
    assert products == [(1, 2, 2 * FOLD_ROWS, 8), (2, 2, FOLD_ROWS + 1, 8), (4, 1, FOLD_ROWS, 8)]
