"""LiScore: its arithmetic, by hand and by formula."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from split_model.pruning.importance import attention_weights, importance
from split_model.pruning.liscore import composite, normalised, sampled_rows


@given(st.integers(0, 500), st.integers(0, 64), st.integers(0, 9))
def test_sampled_rows_are_spread_and_the_same_each_time(rows: int, most: int, seed: int) -> None:
    """As many as asked for, where there are so many that see more than themselves; each twice as far apart at most."""
    found = sampled_rows(rows, most, seed)
    assert len(found) == max(0, min(most, rows - 1)) and found == sorted(set(found))
    assert all(0 < row < rows for row in found) and found == sampled_rows(rows, most, seed)
    if found:
        longest = 2 * math.ceil((rows - 1) / len(found))
        assert all(b - a <= longest for a, b in zip([0, *found], [*found, rows], strict=False))


def test_scores_lie_between_nought_and_one_in_each_layer() -> None:
    """Eq. 14, and its guard; Eq. 15, where the fastest head's time counts fully."""
    assert normalised([3.0, 1.0, 2.0]) == [1.0, 0.0, 0.5]
    assert normalised([2.0, 2.0]) == [1.0, 1.0]
    assert composite([1.0, 0.0], [2.0, 1.0], 0.8) == pytest.approx([0.9, 0.2])


def test_heads_that_look_somewhere_score_above_those_that_look_everywhere() -> None:
    """The mended measures say 0 for a diffuse head and nearly 1 for a sharp one; the literal sum says the opposite."""
    rows, positions = 64, [20, 63]
    weights = torch.zeros(2, 2, rows)
    for number, position in enumerate(positions):
        weights[0, number, : position + 1] = 1 / (position + 1)
        weights[1, number, position // 2] = 1
    for measure in ("variance", "entropy"):
        diffuse, sharp = importance(weights, positions, measure)
        assert diffuse == pytest.approx(0, abs=1e-5) and sharp > 0.95
    diffuse, sharp = importance(weights, positions, "literal")
    assert diffuse > sharp


def test_a_row_of_weights_is_what_attention_uses() -> None:
    """Times the values they give the context that torch's own causal attention gives, also where heads share keys."""
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(30, heads, 8, generator=draw) for heads in (6, 2, 2))
    positions = [1, 7, 29]
    weights = attention_weights(q[positions], k, positions)
    got = weights @ v.transpose(0, 1).repeat_interleave(3, 0)
    queries, keys, values = (each.transpose(0, 1) for each in (q, k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(
        queries, keys.repeat_interleave(3, 0), values.repeat_interleave(3, 0), is_causal=True
    )
    torch.testing.assert_close(got, wanted[:, positions])
