"""T5: an encoder and a decoder that attends to what was read; RMS norm, no biases, relative positions. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from split_model.errors import UnsupportedModel
from split_model.families import fields
from split_model.families.architecture import Architecture, Relative
from split_model.families.names import LayerNames, Names
from split_model.rope_spec import RopeSpec


def _names(stack: str, layer: LayerNames) -> Names:
    return Names(
        prefix="",
        layers=f"{stack}.block.{{}}.",
        layer=layer,
        embedding="shared.weight",
        final_norm=f"{stack}.final_layer_norm",
        head="lm_head.weight",
        relative=f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        renamings=(
            (("shared.weight", "encoder.embed_tokens.weight"),),
            (("shared.weight", "decoder.embed_tokens.weight"),),
            (("lm_head.weight", "shared.weight"),),  # Tied in the file, though the config does not say so.
            ((".wi_1.", ".wi."),),  # Of an MLP without a gate.
        ),
    )


def _layer(mlp: int) -> LayerNames:
    """mlp: the place of the MLP in a layer."""
    return LayerNames(
        input_norm="layer.0.layer_norm",
        query="layer.0.SelfAttention.q",
        key="layer.0.SelfAttention.k",
        value="layer.0.SelfAttention.v",
        output="layer.0.SelfAttention.o",
        mlp_norm=f"layer.{mlp}.layer_norm",
        gate=f"layer.{mlp}.DenseReluDense.wi_0",
        up=f"layer.{mlp}.DenseReluDense.wi_1",
        down=f"layer.{mlp}.DenseReluDense.wo",
    )


ENCODER_NAMES = _names("encoder", _layer(1))
NAMES = _names(
    "decoder",
    replace(
        _layer(2),
        cross_norm="layer.1.layer_norm",
        cross_query="layer.1.EncDecAttention.q",
        cross_key="layer.1.EncDecAttention.k",
        cross_value="layer.1.EncDecAttention.v",
        cross_output="layer.1.EncDecAttention.o",
    ),
)

ENCODER = "T5EncoderModel"

COMMON = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "head_dim": "d_kv",
}

_DEFAULTS = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "n_positions": 512,
    "pad_token_id": 0,
    "eos_token_id": 1,
}


def read(config: Mapping[str, Any]) -> Architecture:
    """A config of `model_type` t5: the decoder, whose `encoder` is the other half; or the encoder alone.

    Raises UnsupportedModel, naming the field.
    """
    fields.check_architectures(config, "t5", "T5ForConditionalGeneration", "T5WithLMHeadModel", ENCODER)
    filled = {**_DEFAULTS, **config}
    # transformers would take this for the encoder alone.
    fields.check_value(config, "num_hidden_layers", filled["num_layers"])
    hidden_size = fields.integer(filled, "d_model", fields.MAX_HIDDEN_SIZE)
    num_layers = fields.integer(filled, "num_layers", fields.MAX_LAYERS)
    num_heads = fields.integer(filled, "num_heads", fields.MAX_HEADS)
    vocab_size = fields.integer(filled, "vocab_size", fields.MAX_VOCAB_SIZE)
    head_dim = fields.integer(filled, "d_kv", fields.MAX_HEAD_DIM)
    activation, gated = _mlp(filled)
    encoder = Architecture(
        model_type="t5",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        intermediate_size=fields.integer(filled, "d_ff", fields.MAX_INTERMEDIATE_SIZE),
        norm_eps=fields.norm_eps(filled, "layer_norm_epsilon", 1e-6),
        activation=activation,
        rope=RopeSpec.none(head_dim),
        tied_embeddings=False,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        windows=(None,) * num_layers,
        max_positions=fields.integer(filled, "n_positions", fields.MAX_POSITIONS),
        bos_token_id=None,
        eos_token_ids=fields.token_ids(filled, "eos_token_id", vocab_size),
        dtype=fields.dtype(filled),
        attention="bidirectional",
        positions="relative",
        relative=_relative(filled),
        gated_mlp=gated,
        scaled_scores=False,
    )
    if fields.has_class(config, ENCODER):
        return encoder
    if filled.get("num_decoder_layers") is not None:
        num_layers = fields.integer(filled, "num_decoder_layers", fields.MAX_LAYERS)
    # Newer configs say it; in older ones it follows from whether the head is tied, which newer ones always say it is.
    scaled = fields.flag(filled, "scale_decoder_outputs", fields.flag(filled, "tie_word_embeddings", True))
    starts = fields.first_token_id(filled, "decoder_start_token_id", vocab_size)
    return replace(
        encoder,
        num_layers=num_layers,
        windows=(None,) * num_layers,
        tied_embeddings=scaled,
        bos_token_id=fields.first_token_id(filled, "pad_token_id", vocab_size) if starts is None else starts,
        attention="cross",
        head_scale=hidden_size**-0.5 if scaled else 1.0,
        encoder=encoder,
    )


def _mlp(config: Mapping[str, Any]) -> tuple[str, bool]:
    """The activation, and whether there is a gate. Fields that say one of the two alone win, as in transformers."""
    value = config.get("feed_forward_proj", "relu")
    if not isinstance(value, str):
        raise UnsupportedModel(f"feed_forward_proj is {value!r}; it must be an activation, perhaps behind 'gated-'")
    named = value.removeprefix("gated-")
    if value == "gated-gelu":
        named = "gelu_new"
    field = "feed_forward_proj"
    if config.get("dense_act_fn") is not None:
        field, named = "dense_act_fn", config["dense_act_fn"]
    gated = fields.flag(config, "is_gated_act", value.startswith("gated-"))
    return fields.activation({field: named}, field, "relu"), gated


def _relative(config: Mapping[str, Any]) -> Relative:
    buckets = fields.integer(config, "relative_attention_num_buckets", fields.MAX_HEAD_DIM, least=4)
    farthest = fields.integer(config, "relative_attention_max_distance", fields.MAX_POSITIONS, least=buckets // 2 + 1)
    return Relative(buckets, farthest)
