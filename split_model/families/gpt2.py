"""GPT-2: layer norm before, learned positions, biases everywhere, a plain MLP. No torch.

Its matrices are stored as [in, out], and query, key and value in one tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from split_model.families import fields
from split_model.families.architecture import Architecture
from split_model.families.layer_normed import layer_normed
from split_model.families.names import LayerNames, Names

NAMES = Names(
    prefix="transformer.",
    layers="transformer.h.{}.",
    layer=LayerNames(
        input_norm="ln_1",
        query="attn.c_attn",
        key="attn.c_attn",
        value="attn.c_attn",
        output="attn.c_proj",
        mlp_norm="ln_2",
        up="mlp.c_fc",
        down="mlp.c_proj",
    ),
    embedding="transformer.wte.weight",
    final_norm="transformer.ln_f",
    head="lm_head.weight",
    positions="transformer.wpe.weight",
    turned=True,
)

COMMON = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}

_DEFAULTS = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}


def read(config: Mapping[str, Any]) -> Architecture:
    """A config of `model_type` gpt2. Raises UnsupportedModel, naming the field."""
    fields.check_architectures(config, "gpt2", "GPT2LMHeadModel")
    # `reorder_and_upcast_attn` is about rounding in half precision alone.
    for field, value in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
        ("is_causal", True),
    ):
        fields.check_value(config, field, value)
    filled = {**_DEFAULTS, **config}
    inner = 4 * fields.integer(filled, "n_embd", fields.MAX_HIDDEN_SIZE)
    if filled.get("n_inner") is not None:
        inner = fields.integer(filled, "n_inner", fields.MAX_INTERMEDIATE_SIZE)
    common = layer_normed(
        filled,
        "gpt2",
        hidden="n_embd",
        layers="n_layer",
        heads="n_head",
        inner=inner,
        max_positions=fields.integer(filled, "n_positions", fields.MAX_POSITIONS),
        norm_eps=fields.norm_eps(filled, "layer_norm_epsilon", 1e-5),
        activation=fields.activation(filled, "activation_function", "gelu_new"),
    )
    vocab_size = fields.integer(filled, "vocab_size", fields.MAX_VOCAB_SIZE)
    return replace(
        common,
        vocab_size=vocab_size,
        tied_embeddings=fields.flag(filled, "tie_word_embeddings", True),
        bos_token_id=fields.first_token_id(filled, "bos_token_id", vocab_size),
        eos_token_ids=fields.token_ids(filled, "eos_token_id", vocab_size),
    )
