"""Theorem 2, put right, beside counting and beside measuring."""

from __future__ import annotations

from dataclasses import replace

import pytest
from group_plans import BERT_LARGE, GPT2, LLAMA_8B, profile, task
from hypothesis import assume, given
from hypothesis import strategies as st

from device_agent.planning.orders import gamma_projected, gamma_reordered, orders, reordering_counts_less
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Work

SHAPES = st.builds(
    lambda heads, per_group, head_dim: replace(
        BERT_LARGE, heads=heads * per_group, kv_heads=heads, head_dim=head_dim, hidden=heads * per_group * head_dim
    ),
    st.integers(2, 32),
    st.integers(1, 8),
    st.sampled_from([16, 64, 128, 256]),
)


def multiplied(*sizes: int) -> int:
    """Multiplications of a product of two matrices, rows × inner × columns."""
    rows, inner, columns = sizes
    return rows * inner * columns


@given(SHAPES, st.integers(1, 500), st.integers(0, 500))
def test_gamma_counts_the_products(of: ModelShape, rows: int, before: int) -> None:
    """Product by product, in the order of Eq. 3 and of Eq. 8."""
    seen, hidden, head = rows + before, of.hidden, of.head_dim
    group = of.heads_per_group
    of_query = multiplied(rows, hidden, head)
    shared = 2 * multiplied(seen, hidden, head) / group
    attended = multiplied(rows, head, seen) + multiplied(rows, seen, head)
    assert gamma_projected(of, rows, seen) == pytest.approx(of_query + shared + attended)
    back = multiplied(rows, head, hidden)
    scores, mixed = multiplied(rows, hidden, seen), multiplied(rows, seen, hidden)
    assert gamma_reordered(of, rows, seen) == of_query + back + scores + mixed + multiplied(rows, hidden, head)


@given(SHAPES, st.integers(1, 500), st.integers(0, 500))
def test_the_condition_says_which_gamma_is_less(of: ModelShape, rows: int, before: int) -> None:
    """Also where query heads share keys and values."""
    seen = rows + before
    by_order = gamma_projected(of, rows, seen), gamma_reordered(of, rows, seen)
    assume(abs(by_order[0] - by_order[1]) > 1e-9 * by_order[0])
    assert reordering_counts_less(of, rows, seen) == (by_order[1] < by_order[0])


@pytest.mark.parametrize(("total", "members"), [(200, 4), (284, 6), (512, 9)])
def test_bert_switches_only_among_many(total: int, members: int) -> None:
    """BERT-large with N rows in even parts: from K = 4, 6 and 9 on."""
    for count in range(1, 12):
        assert reordering_counts_less(BERT_LARGE, total / count, total) == (count >= members)


def test_one_device_never_reorders() -> None:
    """With P = N the projected order counts less, as the paper says."""
    assert not reordering_counts_less(BERT_LARGE, 300, 300)
    assert not reordering_counts_less(BERT_LARGE, 0, 300)


def chosen(of: ModelShape, parts: tuple[int, ...], one_shot: bool = True) -> list[bool]:
    names = "abcdefgh"[: len(parts)]
    measured = profile(of, [1e9] * len(names), 1e7)
    asked = task(of, measured, Work(sum(parts)))
    return [order.reordered for order in orders(of, asked.costs(), parts, one_shot)]


def test_it_is_chosen_where_it_is_faster() -> None:
    """On devices as fast at every product as at any other, the profile agrees with Gamma."""
    assert chosen(BERT_LARGE, (100, 100)) == [False, False]
    assert chosen(BERT_LARGE, (25,) * 8) == [True] * 8
    assert chosen(BERT_LARGE, (160, 20, 20)) == [False, True, True]


def test_causal_rows_count_their_own_prefix() -> None:
    """Who comes first sees only its own rows, so projecting their keys is nothing that others do too."""
    assert chosen(GPT2, (25,) * 8) == [False] + [True] * 7


def test_it_is_never_chosen_where_it_is_wrong() -> None:
    """With something to generate, rotary positions, or a norm on keys; nor where it was not measured."""
    parts = (25,) * 8
    assert not any(chosen(BERT_LARGE, parts, one_shot=False))
    assert not any(chosen(replace(BERT_LARGE, rotary=True), parts))
    assert not any(chosen(replace(BERT_LARGE, key_norm=True), parts))
    assert not any(chosen(LLAMA_8B, parts))
    of = task(BERT_LARGE, profile(BERT_LARGE, [1e9] * 8, 1e7), Work(200))
    for device in of.profile.devices:
        del device.seconds["reordered"]
    assert [order.reordered_s for order in orders(BERT_LARGE, of.costs(), parts, True)] == [None] * 8
    assert not any(order.reordered for order in orders(BERT_LARGE, of.costs(), parts, True))
