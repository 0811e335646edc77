"""Attention in parts, merged, is attention over all positions."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from split_model import partial_attention
from split_model.attention import attend
from split_model.partial_attention import attend_part, merged, visible

HEADS = [(4, 4), (4, 2), (4, 1)]


def inputs(rows: int, length: int, heads: tuple[int, int], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Queries of so many rows, and keys and values of so many positions; scores are far from even."""
    made = torch.Generator().manual_seed(rows * 1000 + length)
    shapes = (rows, heads[0], 8), (heads[1], length, 8), (heads[1], length, 8)
    return [(3 * torch.randn(shape, generator=made)).to(dtype) for shape in shapes]


@given(
    st.integers(1, 9),
    st.integers(0, 40),
    st.lists(st.integers(0, 49), max_size=4),
    st.sampled_from(HEADS),
    st.none() | st.integers(1, 12),
)
def test_parts_make_the_whole(
    rows: int, start: int, cuts: list[int], heads: tuple[int, int], window: int | None
) -> None:
    """However positions are cut into parts, with and without a window: also where some rows, or all, see none of a
    part."""
    length = start + rows
    q, keys, values = inputs(rows, length, heads)
    ends = sorted({0, length, *(cut for cut in cuts if cut < length)})
    parts = [
        attend_part(q, keys[:, one:other], values[:, one:other], visible(start, rows, range(one, other), window))
        for one, other in pairwise(ends)
    ]
    expected = attend(q, keys, values, start, window)
    torch.testing.assert_close(merged(parts).context, expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(merged(parts[::-1]).context, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 5])
def test_blocks_of_positions_change_nothing(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is attended to in several blocks, since it is long, is as in one."""
    q, keys, values = inputs(rows, 300, (4, 2))
    mask = visible(300 - rows, rows, range(300), None)
    whole = attend_part(q, keys, values, mask)
    monkeypatch.setattr(partial_attention, "MOST_SCORES", 1)
    blocks = attend_part(q, keys, values, mask)
    torch.testing.assert_close(blocks.out, whole.out, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(blocks.lse, whole.lse, atol=1e-5, rtol=1e-5)


def test_scores_as_large_as_can_be_do_not_overflow() -> None:
    """Exponentials of such scores would be infinite; and a row that sees nothing of any part gives zeros, no NaN."""
    q, keys, values = inputs(2, 6, (4, 2))
    q, mask = q * 1e4, torch.zeros((2, 6))
    mask[1] = float("-inf")
    parts = [attend_part(q, keys[:, at], values[:, at], mask[:, at]) for at in (slice(0, 3), slice(3, 6))]
    found = merged(parts)
    torch.testing.assert_close(found.out[0].flatten(), attend(q[:1], keys, values, 5, None)[0], atol=1e-4, rtol=1e-4)
    assert not found.out[1].any() and found.lse[1].isneginf().all()


@given(st.integers(0, 30), st.integers(1, 6), st.integers(0, 30), st.integers(1, 9), st.none() | st.integers(1, 9))
def test_visible_is_what_the_rule_says(start: int, rows: int, first: int, count: int, window: int | None) -> None:
    """Position by position; no mask exactly where each row sees each."""
    places = range(first, first + count)
    seen = torch.tensor(
        [
            [place <= at and (window is None or place > at - window) for place in places]
            for at in range(start, start + rows)
        ]
    )
    mask = visible(start, rows, places, window)
    assert (mask is None) == bool(seen.all())
    if mask is not None:
        assert (mask == 0).equal(seen) and mask[~seen].isneginf().all()


def test_bfloat16_is_summed_in_float32() -> None:
    """Parts of bfloat16 keys are as near to the truth as attention over all of them is."""
    q, keys, values = inputs(3, 20, (4, 2), torch.bfloat16)
    parts = [
        attend_part(q, keys[:, one:other], values[:, one:other], visible(17, 3, range(one, other), None))
        for one, other in [(0, 11), (11, 20)]
    ]
    truth = attend(q.double(), keys.double(), values.double(), 17, None)
    torch.testing.assert_close(merged(parts).context.double(), truth, atol=1e-5, rtol=1e-5)
