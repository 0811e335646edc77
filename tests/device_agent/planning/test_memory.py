"""Bytes of a plan, beside the model's own."""

from __future__ import annotations

import pytest
from group_plans import TINY_CAUSAL, profile, shape
from hypothesis import given
from hypothesis import strategies as st

from device_agent.planning.memory import DoesNotFit, Lack, held, lacking
from device_agent.planning.plan import ByRows, GroupPlan, Hybrid, Layer, Sharded, Whole
from device_agent.planning.shape import ModelShape
from device_agent.planning.shares import handed_out

PLAIN = shape(3, 32, 4, 48, 50, kv_heads=2, causal=True, biases=False)


def plan(of: ModelShape, layer: Layer) -> GroupPlan:
    return GroupPlan("test", ("a", "b", "c"), "a", (layer,) * of.layers)


def weights(of: ModelShape) -> int:
    """Bytes of all layers."""
    everything = range(of.kv_heads), range(of.intermediate)
    return of.dtype_bytes * sum(of.layer_elements(layer, *everything) for layer in range(of.layers))


@given(st.lists(st.floats(0.1, 1), min_size=3, max_size=3))
def test_shards_weigh_together_what_the_model_weighs(shares: list[float]) -> None:
    """All weights once, and the norms at every member; keys and values once."""
    of = PLAIN
    groups, columns = handed_out(of.kv_heads, shares), handed_out(of.intermediate, shares)
    cache = of.dtype_bytes * of.layers * 2 * of.kv_size * 100
    for layer in (Sharded(groups, columns), Hybrid(groups, columns, tuple(shares))):
        found = held(of, plan(of, layer), 10, 100)
        norms = 2 * of.layers * 2 * of.norm_elements * of.dtype_bytes
        assert sum(one.layers for one in found.values()) == weights(of) + norms
        assert sum(one.cache for one in found.values()) == cache


def test_scheme_2_has_all_of_each_mlp() -> None:
    """Galaxy+'s Eq. 8: a share of the attention, and the whole MLP."""
    of = PLAIN
    two = held(of, plan(of, Hybrid((1, 1, 0), (48, 0, 0), (1.0, 1.0, 1.0), mlp_by_rows=True)), 10, 0)
    one = held(of, plan(of, Hybrid((1, 1, 0), (48, 0, 0), (1.0, 1.0, 1.0))), 10, 0)
    assert two["a"].layers == one["a"].layers
    assert two["c"].layers - one["c"].layers == of.layers * of.dtype_bytes * 48 * of.column_elements


def test_by_rows_everybody_has_everything() -> None:
    """Weights, keys and values; with prefixes keys and values only up to a member's own rows."""
    of = TINY_CAUSAL
    full = of.dtype_bytes * of.layers * 2 * of.kv_size * 100
    shares = (1.0, 1.0, 2.0)
    found = held(of, plan(of, ByRows(shares, Whole(0))), 10, 100)
    assert {one.layers for one in found.values()} == {weights(of)}
    assert {one.cache for one in found.values()} == {full}
    found = held(of, plan(of, ByRows(shares, Whole(2), prefix=True)), 10, 100)
    assert [one.cache for one in found.values()] == [full / 4, full / 2, full]


def test_what_comes_before_and_behind_the_layers() -> None:
    """Embedding and head at the portal; positions where the first layer is."""
    of, size = PLAIN, PLAIN.dtype_bytes
    entry, embedding, end = of.entry_elements, of.embedding_elements, of.end_elements

    def ends(plan: GroupPlan) -> dict[str, int]:
        return {name: one.ends // size for name, one in held(of, plan, 10, 0).items()}

    tensor = Sharded((1, 1, 0), (16, 16, 16))
    assert ends(plan(of, tensor)) == {"a": embedding + entry + end, "b": entry, "c": entry}
    assert ends(plan(of, Whole(1))) == {"a": embedding + end, "b": entry, "c": 0}
    apart = GroupPlan("test", ("a", "b"), "p", (Sharded((1, 1), (24, 24)),) * of.layers)
    assert ends(apart) == {"a": entry, "b": entry, "p": embedding + end}
    assert held(of, apart, 10, 0)["p"].layers == 0


def test_nothing_is_kept_where_nothing_is_generated() -> None:
    """No room for keys and values of one-shot work, nor of a model whose rows see later ones."""
    layer = Sharded((1, 1, 0), (16, 16, 16))
    assert held(PLAIN, plan(PLAIN, layer), 10, 0)["a"].cache == 0
    encoder = shape(3, 32, 4, 48, 50, kv_heads=2)
    assert held(encoder, plan(encoder, layer), 10, 100)["a"].cache == 0


def test_a_decoder_keeps_what_it_attends_to() -> None:
    """Keys and values of what an encoder read, as many as of its own rows; the encoder keeps nothing."""
    of = shape(4, 32, 4, 48, 50, cross_layers=2)
    found = held(of, plan(of, Whole(1)), 10, 100)
    assert found["b"].cache == of.dtype_bytes * 2 * 2 * 2 * of.kv_size * 100


@given(st.integers(1, 200), st.integers(1, 200))
def test_more_rows_take_no_less(rows: int, more: int) -> None:
    """Of any plan."""
    of = TINY_CAUSAL
    for layer in (Whole(1), Sharded((1, 1, 0), (16, 16, 16)), ByRows((1.0, 1.0, 1.0), Whole(0))):
        few, many = held(of, plan(of, layer), rows, rows), held(of, plan(of, layer), rows + more, rows + more)
        assert all(many[name].total >= few[name].total for name in few)


def test_who_lacks_is_named() -> None:
    """With what is needed and what there is."""
    of = TINY_CAUSAL
    found = held(of, plan(of, ByRows((1.0, 1.0, 1.0), Whole(0))), 10, 100)
    measured = profile(of, [1e6] * 3, 1e6, memory=[1e12, found["b"].total, found["c"].total - 1])
    lacks = lacking(measured, found)
    assert lacks == [Lack("c", found["c"].total, found["c"].total - 1)]
    error = DoesNotFit("voltage", [Lack("c", 3_000_000, 1_000_000)])
    assert isinstance(error, ValueError) and error.lacks[0].device == "c"
    assert str(error) == "voltage does not fit: c lacks 2.0 MB: 3.0 are needed"
    with pytest.raises(DoesNotFit):
        raise error
