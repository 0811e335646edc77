"""The attention seam against the formula, written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from split_model.attention import attend


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
