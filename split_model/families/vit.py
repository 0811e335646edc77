"""ViT: an image's patches as rows that see one another, layer norm before, learned positions. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from split_model.errors import UnsupportedModel
from split_model.families import fields
from split_model.families.architecture import Architecture, Patches
from split_model.families.layer_normed import layer_normed
from split_model.families.names import LayerNames, Names

NAMES = Names(
    prefix="vit.",
    layers="vit.encoder.layer.{}.",
    layer=LayerNames(
        input_norm="layernorm_before",
        query="attention.attention.query",
        key="attention.attention.key",
        value="attention.attention.value",
        output="attention.output.dense",
        mlp_norm="layernorm_after",
        up="intermediate.dense",
        down="output.dense",
    ),
    final_norm="vit.layernorm",
    positions="vit.embeddings.position_embeddings",
    patches="vit.embeddings.patch_embeddings.projection",
    first_row="vit.embeddings.cls_token",
    pooler="vit.pooler.dense",
    classifier="classifier",
    renamings=(
        (
            ("vit.encoder.layer.", "vit.layers."),
            ("attention.attention.query", "attention.q_proj"),
            ("attention.attention.key", "attention.k_proj"),
            ("attention.attention.value", "attention.v_proj"),
            ("attention.output.dense", "attention.o_proj"),
            ("intermediate.dense", "mlp.fc1"),
            ("output.dense", "mlp.fc2"),
        ),
    ),
)

CLASSIFIER = "ViTForImageClassification"
POOLED = "ViTModel"

_DEFAULTS = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
}


def read(config: Mapping[str, Any]) -> Architecture:
    """A config of `model_type` vit. Raises UnsupportedModel, naming the field."""
    fields.check_architectures(config, "vit", CLASSIFIER, POOLED)
    filled = {**_DEFAULTS, **config}
    patches = Patches(
        fields.two_sizes(filled, "image_size", fields.MAX_PIXELS),
        fields.two_sizes(filled, "patch_size", fields.MAX_PIXELS),
        fields.integer(filled, "num_channels", fields.MAX_LABELS),
    )
    if any(whole % part for whole, part in zip(patches.image, patches.patch, strict=True)):
        raise UnsupportedModel(f"image_size {patches.image} is no multiple of patch_size {patches.patch}")
    common = layer_normed(
        filled,
        "vit",
        inner=fields.integer(filled, "intermediate_size", fields.MAX_INTERMEDIATE_SIZE),
        max_positions=patches.count + 1,
        norm_eps=fields.norm_eps(filled, "layer_norm_eps", 1e-12),
        activation=fields.activation(filled, "hidden_act", "gelu"),
    )
    classifies = fields.has_class(config, CLASSIFIER)
    pooled_size = common.hidden_size
    if filled.get("pooler_output_size"):
        pooled_size = fields.integer(filled, "pooler_output_size", fields.MAX_HIDDEN_SIZE)
    return replace(
        common,
        qkv_bias=fields.flag(filled, "qkv_bias", True),
        attention="bidirectional",
        patches=patches,
        pooled_size=0 if classifies else pooled_size,
        pooled_activation=fields.activation(filled, "pooler_act", "tanh"),
        labels=fields.labels(config) if classifies else 0,
    )
