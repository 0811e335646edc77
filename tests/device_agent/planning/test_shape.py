"""Shapes count the weights that slices hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from group_plans import PAPERS, TINY
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.planning.shape import ModelShape
from split_model.slices import Slice, slice_bytes, whole
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
SMALL = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": CONFIG,
    "biases": {**CONFIG, "attention_bias": True, "mlp_bias": True},
    "qwen2": {**CONFIG, "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {**CONFIG, "model_type": "qwen3", "head_dim": 32},
    "gpt2": {"model_type": "gpt2", "vocab_size": 96, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_inner": 40},
    "opt": {**SMALL, "model_type": "opt", "vocab_size": 96, "ffn_dim": 40, "word_embed_proj_dim": 32},
    "bert": {**SMALL, "model_type": "bert", "vocab_size": 96},
    "vit": {**SMALL, "model_type": "vit", "image_size": 32, "patch_size": 16},
}


T5 = {"model_type": "t5", "vocab_size": 96, "d_model": 64, "d_kv": 16, "num_heads": 4, "d_ff": 40, "num_layers": 3}


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@settings(max_examples=30)
def test_a_slice_weighs_what_its_shape_says(family: str, data: st.DataObject) -> None:
    """Any groups and columns of any family's layer: exactly the bytes of the same slice."""
    spec = ModelSpec.from_config(FAMILIES[family])
    shape = ModelShape.of(spec, "bfloat16")
    groups = sorted(data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4))))
    columns = sorted(data.draw(st.tuples(st.integers(0, 40), st.integers(0, 40))))
    held = range(*groups), range(*columns)
    assert (shape.dtype_bytes, shape.kv_heads, shape.intermediate) == (2, 4, 40)
    assert slice_bytes(spec, Slice(1, 2, *held), "bfloat16") == 2 * shape.layer_elements(1, *held)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ends_weigh_what_their_slices_say(family: str) -> None:
    """The embedding, what comes before the first layer, and what the end adds to them."""
    spec = ModelSpec.from_config(FAMILIES[family])
    shape = ModelShape.of(spec, "float32")
    assert slice_bytes(spec, Slice(0, 0, embedding=True), "float32") == 4 * shape.embedding_elements
    everything = range(shape.kv_heads), range(shape.intermediate)
    layers = sum(shape.layer_elements(layer, *everything) for layer in range(shape.layers))
    ends = shape.embedding_elements + shape.entry_elements + shape.end_elements
    assert slice_bytes(spec, whole(spec), "float32") == 4 * (layers + ends)


def test_an_encoder_and_its_decoder_are_one_stack() -> None:
    """T5: together exactly the bytes of both slices, the shared embedding once."""
    spec = ModelSpec.from_config(T5)
    shape = ModelShape.of(spec, "float32")
    assert (shape.layers, shape.cross_layers, shape.causal, shape.outputs) == (6, 3, False, 96)
    everything = range(shape.kv_heads), range(shape.intermediate)
    layers = sum(shape.layer_elements(layer, *everything) for layer in range(shape.layers))
    ends = shape.embedding_elements + shape.entry_elements + shape.end_elements
    assert spec.reader is not None
    apart = sum(slice_bytes(half, whole(half), "float32") for half in (spec.reader, spec))
    shared = slice_bytes(spec, Slice(0, 0, embedding=True), "float32")
    assert apart == 4 * (layers + ends) + shared


def test_what_a_model_is_is_taken_from_its_spec() -> None:
    """Kinds and places, as planners ask for them."""
    found = {family: ModelShape.of(ModelSpec.from_config(config)) for family, config in FAMILIES.items()}
    assert [family for family, shape in found.items() if not shape.causal] == ["bert", "vit"]
    assert [family for family, shape in found.items() if shape.rotary] == ["llama", "biases", "qwen2", "qwen3"]
    assert [family for family, shape in found.items() if shape.key_norm] == ["qwen3"]
    assert [family for family, shape in found.items() if not shape.norm_first] == ["bert"]
    assert found["gpt2"].outputs == 96 and not found["gpt2"].gated and found["llama"].gated


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
    ends = shape.embedding_elements + shape.entry_elements + shape.end_elements
    assert layers + ends == pytest.approx(millions * 1e6, rel=0.01)


def test_a_shape_that_cannot_be_is_refused() -> None:
    """By the name of what is wrong."""
    for field, value in (("layers", 0), ("kv_heads", 3), ("cross_layers", 4), ("dtype_bytes", 0)):
        with pytest.raises(ValueError, match=field if field != "kv_heads" and field != "cross_layers" else "cannot"):
            replace(TINY, **{field: value})  # type: ignore[arg-type]
