"""GPT-2: layer norm before, learned positions, biases everywhere, a plain MLP. No torch.

Its matrices are stored as [in, out], and query, key and value in one tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from split_model.families import fields
from split_model.families.architecture import Architecture
from split_model.families.names import LayerNames, Names
from split_model.rope_spec import RopeSpec

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
    ):
        fields.check_value(config, field, value)
    filled = {**_DEFAULTS, **config}
    hidden_size = fields.integer(filled, "n_embd", fields.MAX_HIDDEN_SIZE)
    num_layers = fields.integer(filled, "n_layer", fields.MAX_LAYERS)
    num_heads = fields.integer(filled, "n_head", fields.MAX_HEADS)
    vocab_size = fields.integer(filled, "vocab_size", fields.MAX_VOCAB_SIZE)
    head_dim = fields.even_head_dim(filled, "n_embd", "n_head")
    width = 4 * hidden_size
    if filled.get("n_inner") is not None:
        width = fields.integer(filled, "n_inner", fields.MAX_INTERMEDIATE_SIZE)
    return Architecture(
        model_type="gpt2",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        intermediate_size=width,
        norm_eps=fields.norm_eps(filled, "layer_norm_epsilon", 1e-5),
        activation=fields.activation(filled, "activation_function", "gelu_new"),
        rope=RopeSpec.none(head_dim),
        tied_embeddings=fields.flag(filled, "tie_word_embeddings", True),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        qk_norm=False,
        windows=(None,) * num_layers,
        max_positions=fields.integer(filled, "n_positions", fields.MAX_POSITIONS),
        bos_token_id=fields.first_token_id(filled, "bos_token_id", vocab_size),
        eos_token_ids=fields.token_ids(filled, "eos_token_id", vocab_size),
        dtype=fields.dtype(filled),
        positions="learned",
        norm="layer",
        gated_mlp=False,
    )
