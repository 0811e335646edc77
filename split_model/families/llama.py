"""Llama, Vicuna, Mistral, Qwen2, Qwen3: RMS norm, rotary positions, grouped-query attention, gated MLP. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from split_model.errors import UnsupportedModel
from split_model.families import fields
from split_model.families.architecture import Architecture
from split_model.families.names import LayerNames, Names
from split_model.rope_spec import RopeSpec

NAMES = Names(
    prefix="model.",
    layers="model.layers.{}.",
    layer=LayerNames(
        input_norm="input_layernorm",
        query="self_attn.q_proj",
        key="self_attn.k_proj",
        value="self_attn.v_proj",
        output="self_attn.o_proj",
        mlp_norm="post_attention_layernorm",
        up="mlp.up_proj",
        down="mlp.down_proj",
        gate="mlp.gate_proj",
        query_norm="self_attn.q_norm",
        key_norm="self_attn.k_norm",
    ),
    embedding="model.embed_tokens.weight",
    final_norm="model.norm",
    head="lm_head.weight",
)

# What transformers assumes where a config leaves a field out. `None` for KV heads: as many as heads.
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": None, "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2},
    "mistral": {
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096 * 32,
        "sliding_window": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "qwen2": {
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "qwen3": {
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
}


def read(config: Mapping[str, Any]) -> Architecture:
    """A config whose `model_type` is in DEFAULTS. Raises UnsupportedModel, naming the field."""
    family: str = config["model_type"]
    fields.check_architectures(config, family, f"{family.capitalize()}ForCausalLM")
    fields.check_value(config, "is_causal", True)
    filled = {**DEFAULTS[family], **config}
    hidden_size = fields.integer(filled, "hidden_size", fields.MAX_HIDDEN_SIZE)
    num_layers = fields.integer(filled, "num_hidden_layers", fields.MAX_LAYERS)
    num_heads = fields.integer(filled, "num_attention_heads", fields.MAX_HEADS)
    num_kv_heads = num_heads
    if filled["num_key_value_heads"] is not None:
        num_kv_heads = fields.integer(filled, "num_key_value_heads", fields.MAX_HEADS)
    if num_heads % num_kv_heads:
        raise UnsupportedModel(f"num_attention_heads {num_heads} is no multiple of {num_kv_heads} key-value heads")
    head_dim = _head_dim(filled)
    max_positions = fields.integer(filled, "max_position_embeddings", fields.MAX_POSITIONS)
    vocab_size = fields.integer(filled, "vocab_size", fields.MAX_VOCAB_SIZE)
    attention_bias = fields.flag(filled, "attention_bias")
    mlp_bias = fields.flag(filled, "mlp_bias")
    if attention_bias and family in ("mistral", "qwen2"):
        raise UnsupportedModel(f"attention_bias is set, which {family} models do not have")
    if mlp_bias and family != "llama":
        raise UnsupportedModel(f"mlp_bias is set, which {family} models do not have")
    return Architecture(
        model_type=family,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=fields.integer(filled, "intermediate_size", fields.MAX_INTERMEDIATE_SIZE),
        norm_eps=fields.norm_eps(filled, "rms_norm_eps", 1e-6),
        activation=fields.activation(filled, "hidden_act", "silu"),
        rope=RopeSpec.from_config(filled, head_dim, max_positions),
        tied_embeddings=fields.flag(filled, "tie_word_embeddings"),
        qkv_bias=attention_bias or family == "qwen2",
        output_bias=attention_bias,
        mlp_bias=mlp_bias,
        qk_norm=family == "qwen3",
        windows=_windows(filled, family, num_layers),
        max_positions=max_positions,
        bos_token_id=fields.first_token_id(filled, "bos_token_id", vocab_size),
        eos_token_ids=fields.token_ids(filled, "eos_token_id", vocab_size),
        dtype=fields.dtype(filled),
    )


def _head_dim(config: Mapping[str, Any]) -> int:
    if config.get("head_dim") is not None:
        head_dim = fields.integer(config, "head_dim", fields.MAX_HEAD_DIM)
    else:
        head_dim = fields.even_head_dim(config, "hidden_size", "num_attention_heads")
    if head_dim % 2:
        raise UnsupportedModel(f"head_dim {head_dim} is odd; rotary positions need an even one")
    return head_dim


def _windows(config: Mapping[str, Any], family: str, num_layers: int) -> tuple[int | None, ...]:
    if family == "llama":
        return (None,) * num_layers
    uses_window = config.get("sliding_window") is not None
    if family != "mistral":
        uses_window = uses_window and fields.flag(config, "use_sliding_window")
    window = fields.integer(config, "sliding_window", fields.MAX_POSITIONS) if uses_window else None
    layer_types = config.get("layer_types")
    if layer_types is None:
        first = 0
        if window is not None and family != "mistral":
            first = fields.integer(config, "max_window_layers", fields.MAX_LAYERS, least=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise UnsupportedModel(f"layer_types must be a list of {num_layers} names, one for each layer")
    known: dict[object, int | None] = {"full_attention": None}
    if window is not None:
        known["sliding_attention"] = window
    for name in layer_types:
        if not isinstance(name, str) or name not in known:
            raise UnsupportedModel(f"layer_types has {name!r}, which does not fit sliding_window {window}")
    windows = tuple(known[name] for name in layer_types)
    if family == "mistral" and any(found != window for found in windows):
        raise UnsupportedModel("layer_types mixes attentions, which mistral models do not do")
    return windows
