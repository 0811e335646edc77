"""Shapes count the weights that slices hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from edge_groups import PAPERS, TINY
from hypothesis import given
from hypothesis import strategies as st

from device_agent.edge.shape import Shape
from split_model.slices import Slice, slice_bytes
from split_model.spec import ModelSpec

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 40,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 128,
}
FAMILIES: list[dict[str, Any]] = [
    CONFIG,
    {**CONFIG, "attention_bias": True, "mlp_bias": True},
    {**CONFIG, "model_type": "qwen2", "tie_word_embeddings": True},
    {**CONFIG, "model_type": "qwen3", "head_dim": 32},
]


@pytest.mark.parametrize("config", FAMILIES, ids=["llama", "biases", "qwen2", "qwen3"])
@given(data=st.data())
def test_a_slice_weighs_what_its_shape_says(config: dict[str, Any], data: st.DataObject) -> None:
    """Any groups and columns of any layer: exactly the bytes of the same slice."""
    spec = ModelSpec.from_config(config)
    shape = Shape.of(spec, "bfloat16")
    groups = sorted(data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4))))
    columns = sorted(data.draw(st.tuples(st.integers(0, 40), st.integers(0, 40))))
    held = range(*groups), range(*columns)
    assert shape.dtype_bytes == 2
    assert slice_bytes(spec, Slice(1, 2, *held), "bfloat16") == 2 * shape.layer_elements(1, *held)


@pytest.mark.parametrize("config", FAMILIES, ids=["llama", "biases", "qwen2", "qwen3"])
def test_the_ends_weigh_what_their_slices_say(config: dict[str, Any]) -> None:
    """The embedding, and what the head adds to it."""
    spec = ModelSpec.from_config(config)
    shape = Shape.of(spec)
    assert slice_bytes(spec, Slice(0, 0, embedding=True), "float32") == 4 * shape.embedding_elements
    both = slice_bytes(spec, Slice(0, 0, embedding=True, head=True), "float32")
    assert both == 4 * (shape.embedding_elements + shape.head_elements)


@pytest.mark.parametrize(
    ("name", "millions"),
    [("DistilBERT", 66), ("BERT-large", 335), ("ViT-base", 86), ("ViT-huge", 631), ("T5-L", 738), ("GPT-2", 124),
     ("GPT2-L", 774), ("OPT-L", 1316)],
)  # fmt: skip
def test_the_papers_models_have_their_sizes(name: str, millions: float) -> None:
    """All weights together, as published, within 1 %."""
    shape = PAPERS[name]
    layers = sum(
        shape.layer_elements(layer, range(shape.kv_heads), range(shape.intermediate)) for layer in range(shape.layers)
    )
    assert layers + shape.embedding_elements + shape.head_elements == pytest.approx(millions * 1e6, rel=0.01)


def test_a_shape_that_cannot_be_is_refused() -> None:
    """By the name of what is wrong."""
    for field, value in (("layers", 0), ("kv_heads", 3), ("cross_layers", 4), ("dtype_bytes", 0)):
        with pytest.raises(ValueError, match=field if field != "kv_heads" and field != "cross_layers" else "cannot"):
            replace(TINY, **{field: value})  # type: ignore[arg-type]
