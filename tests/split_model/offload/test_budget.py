"""What stays of a model within a budget: never more than there is, and as few bytes read as can be."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_drafters import tiny_spec

from split_model.offload.budget import BudgetTooSmall, Residence, residence
from split_model.offload.layout import Cut, unit_bytes, unit_matrices
from split_model.offload.units import Unit
from split_model.spec import ModelSpec

SPEC = tiny_spec(num_hidden_layers=6, hidden_size=128, num_attention_heads=4, head_dim=32, intermediate_size=352)


def within(budget: int, first_layer: int = 0, spec: ModelSpec = SPEC) -> Residence:
    return residence(spec, "float32", budget, positions=64, rows=16, first_layer=first_layer)


EVERYTHING = within(1 << 40).needed


def least() -> int:
    with pytest.raises(BudgetTooSmall) as refused:
        within(1)
    return refused.value.needed


def read_bytes(units: tuple[Unit, ...]) -> int:
    return sum(unit_bytes(SPEC, unit, Cut(), "float32") for unit in units)


@given(st.floats(0, 1), st.integers(0, 6))
def test_what_stays_and_the_ring_are_within_the_budget(share: float, first_layer: int) -> None:
    """With the ring there is room for two of the largest units, and layers before the first one asked for stay."""
    budget = int(least() + share * (EVERYTHING - least()))
    try:
        found = within(budget, first_layer)
    except BudgetTooSmall as error:
        assert first_layer > 0 and error.needed > budget
        return
    assert found.needed <= budget
    assert all(unit.layer >= first_layer for unit in found.streamed)
    assert list(found.streamed) == sorted(set(found.streamed))
    if found.streamed:
        assert found.ring_bytes >= 2 * max(read_bytes((unit,)) for unit in found.streamed)
        kept = sum(each.nbytes for unit in found.streamed for each in unit_matrices(SPEC, unit, Cut(), "float32", True))
        assert found.needed == EVERYTHING - kept + found.ring_bytes


@given(st.floats(0, 1))
def test_no_other_choice_reads_less(share: float) -> None:
    """Beside all numbers of attentions and MLPs that have room."""
    budget = int(least() + share * (EVERYTHING - least()))
    found = within(budget)
    if not found.streamed:
        assert budget >= EVERYTHING
        return
    attention, mlp = (read_bytes((Unit(0, half),)) for half in ("attention", "mlp"))
    for attentions, mlps in product(range(7), repeat=2):
        if attentions * attention + mlps * mlp < read_bytes(found.streamed) and (attentions or mlps):
            largest = max(attention if attentions else 0, mlp if mlps else 0)
            gap = 2 * 352 * 128 * 4 if attentions and mlps else 0  # Gate and up, the largest matrix.
            assert EVERYTHING - attentions * attention - mlps * mlp + 2 * largest + gap > budget


def test_what_is_missing_is_said() -> None:
    """One byte too little is refused, with the bytes that are needed; so many are enough."""
    needed = least()
    with pytest.raises(BudgetTooSmall, match=r"MB are needed at least") as refused:
        within(needed - 1)
    assert (refused.value.needed, refused.value.budget) == (needed, needed - 1)
    assert within(needed).needed == needed


@given(st.floats(0, 1))
def test_what_is_read_is_spread_over_what_stays(share: float) -> None:
    """From one half of a kind that is read to the next it is as far as between any other two, or one layer farther."""
    found = within(int(least() + share * (EVERYTHING - least())))
    for half in ("attention", "mlp"):
        layers = [unit.layer for unit in found.streamed if unit.half == half]
        round_again = [*layers, *(SPEC.num_layers + layer for layer in layers[:1])]
        gaps = [behind - before for before, behind in pairwise(round_again)]
        assert not gaps or max(gaps) - min(gaps) <= 1
