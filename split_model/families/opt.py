"""OPT: layer norm before (after, in the one of 350 M parameters), learned positions from the third row on, ReLU.

That one's embedding is also narrower than its rows, and it has no final norm. No torch.
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
    prefix="model.",
    layers="model.decoder.layers.{}.",
    layer=LayerNames(
        input_norm="self_attn_layer_norm",
        query="self_attn.q_proj",
        key="self_attn.k_proj",
        value="self_attn.v_proj",
        output="self_attn.out_proj",
        mlp_norm="final_layer_norm",
        up="fc1",
        down="fc2",
    ),
    embedding="model.decoder.embed_tokens.weight",
    final_norm="model.decoder.final_layer_norm",
    head="lm_head.weight",
    positions="model.decoder.embed_positions.weight",
    project_in="model.decoder.project_in",
    project_out="model.decoder.project_out",
)

_DEFAULTS = {
    "vocab_size": 50272,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "ffn_dim": 3072,
    "max_position_embeddings": 2048,
    "num_attention_heads": 12,
    "bos_token_id": 2,
    "eos_token_id": 2,
}
_NORM_EPS = 1e-5  # No config says it.
_FIRST_POSITION = 2  # Two rows of the table are left over from how padding was once told from text.


def read(config: Mapping[str, Any]) -> Architecture:
    """A config of `model_type` opt. Raises UnsupportedModel, naming the field."""
    fields.check_architectures(config, "opt", "OPTForCausalLM")
    fields.check_value(config, "layer_norm_elementwise_affine", True)
    fields.check_value(config, "is_causal", True)
    filled = {**_DEFAULTS, **config}
    common = layer_normed(
        filled,
        "opt",
        inner=fields.integer(filled, "ffn_dim", fields.MAX_INTERMEDIATE_SIZE),
        max_positions=fields.integer(filled, "max_position_embeddings", fields.MAX_POSITIONS),
        norm_eps=_NORM_EPS,
        activation=fields.activation(filled, "activation_function", "relu"),
    )
    vocab_size = fields.integer(filled, "vocab_size", fields.MAX_VOCAB_SIZE)
    embedding_size = common.hidden_size
    if filled.get("word_embed_proj_dim") is not None:
        embedding_size = fields.integer(filled, "word_embed_proj_dim", fields.MAX_HIDDEN_SIZE)
    before = fields.flag(filled, "do_layer_norm_before", True)
    biases = fields.flag(filled, "enable_bias", True)
    return replace(
        common,
        vocab_size=vocab_size,
        tied_embeddings=fields.flag(filled, "tie_word_embeddings", True),
        qkv_bias=biases,
        output_bias=biases,
        mlp_bias=biases,
        bos_token_id=fields.first_token_id(filled, "bos_token_id", vocab_size),
        eos_token_ids=fields.token_ids(filled, "eos_token_id", vocab_size),
        position_offset=_FIRST_POSITION,
        norm_place="before" if before else "after",
        final_norm=before and not fields.flag(filled, "_remove_final_layer_norm"),
        embedding_size=None if embedding_size == common.hidden_size else embedding_size,
    )
