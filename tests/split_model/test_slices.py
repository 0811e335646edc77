"""Cuts of a model and their exact sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_model.slices import (
    Slice,
    held_bytes,
    input_slice,
    middle_slice,
    output_slice,
    slice_bytes,
    slice_parts,
    whole,
)
from split_model.spec import ModelSpec
from split_model.weight_parts import WeightPart

CONFIG = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_bias": True,
    "mlp_bias": True,
}
SPEC = ModelSpec.from_config(CONFIG)
TIED = ModelSpec.from_config({**CONFIG, "tie_word_embeddings": True})

cuts = st.integers(0, 6).flatmap(lambda m: st.tuples(st.just(m), st.integers(0, 6 - m)))


def elements(parts: Iterable[WeightPart]) -> int:
    return sum(part.num_elements for part in parts)


@given(cuts)
def test_three_submodels_hold_every_tensor_once(cut: tuple[int, int]) -> None:
    """Input, middle and output slice together are the whole model, without overlap."""
    m, k = cut
    pieces = [input_slice(SPEC, m), middle_slice(SPEC, m, k), output_slice(SPEC, k)]
    names = [part.name for held in pieces for part in slice_parts(SPEC, held)]
    assert sorted(names) == sorted(part.name for part in slice_parts(SPEC, whole(SPEC)))
    assert sum(slice_bytes(SPEC, held, "float32") for held in pieces) == slice_bytes(SPEC, whole(SPEC), "float32")


@given(st.integers(0, 2), st.lists(st.integers(0, 44), max_size=3))
def test_shards_hold_every_element_once_but_for_the_norms(group: int, bounds: list[int]) -> None:
    """KV groups and columns that cover a layer cover its elements; each shard has its own norms."""
    edges = [0, *sorted(bounds), 44]
    columns = [range(start, stop) for start, stop in itertools.pairwise(edges)]
    groups = [range(0, group), range(group, 2)] + [range(2, 2)] * (len(columns) - 2)
    groups = groups[: len(columns)] if len(columns) > 1 else [range(0, 2)]
    layer = Slice(1, 2)
    shards = [Slice(1, 2, kv_groups=held, columns=part) for held, part in zip(groups, columns, strict=True)]
    # Two empty ranges may both start at 0; only a shard that holds element 0 adds the bias.
    found = [part for shard in shards for part in slice_parts(SPEC, shard) if "norm" not in part.name]
    assert elements(found) == elements(part for part in slice_parts(SPEC, layer) if "norm" not in part.name)


@pytest.mark.parametrize(("m", "k"), [(-1, 0), (0, -1), (7, 0), (0, 7), (4, 3)])
def test_impossible_cuts_are_refused(m: int, k: int) -> None:
    """m and k must not be negative, nor more layers together than there are."""
    with pytest.raises(ValueError, match="cannot cut"):
        middle_slice(SPEC, m, k)


def test_ranges_outside_the_model_are_refused() -> None:
    """Bounds are checked when a slice is made, and against the model when it is used."""
    for wrong in (
        lambda: Slice(3, 2),
        lambda: Slice(-1, 2),
        lambda: Slice(0, 1, kv_groups=range(0, 2, 2)),
        lambda: Slice(0, 1, columns=range(-1, 2)),
        lambda: slice_parts(SPEC, Slice(0, 7)),
        lambda: slice_parts(SPEC, Slice(0, 1, kv_groups=range(0, 3))),
        lambda: slice_parts(SPEC, Slice(0, 1, columns=range(0, 45))),
        lambda: slice_bytes(SPEC, whole(SPEC), "int8"),
    ):
        with pytest.raises(ValueError):
            wrong()


def test_a_tied_matrix_counts_once_where_both_ends_are_held() -> None:
    """Embedding and head of one process share it; in two processes each holds it."""
    matrix = 4 * 100 * 32
    ends = [input_slice(TIED, 0), output_slice(TIED, 0)]
    assert slice_bytes(TIED, ends[0], "float32") == matrix
    assert slice_bytes(TIED, ends[1], "float32") == matrix + 4 * 32
    assert held_bytes(TIED, ends, "float32") == matrix + 4 * 32
    assert slice_bytes(SPEC, whole(SPEC), "float32") - slice_bytes(TIED, whole(TIED), "float32") == matrix
    assert 2 * slice_bytes(TIED, whole(TIED), "bfloat16") == slice_bytes(TIED, whole(TIED), "float32")
