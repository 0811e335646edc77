"""BERT: rows see all of their text, layer norm after each sum, learned positions and token types. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from split_model.families import fields
from split_model.families.architecture import Architecture
from split_model.families.layer_normed import layer_normed
from split_model.families.names import LayerNames, Names

NAMES = Names(
    prefix="bert.",
    layers="bert.encoder.layer.{}.",
    layer=LayerNames(
        input_norm="attention.output.LayerNorm",
        query="attention.self.query",
        key="attention.self.key",
        value="attention.self.value",
        output="attention.output.dense",
        mlp_norm="output.LayerNorm",
        up="intermediate.dense",
        down="output.dense",
    ),
    embedding="bert.embeddings.word_embeddings.weight",
    positions="bert.embeddings.position_embeddings.weight",
    token_types="bert.embeddings.token_type_embeddings.weight",
    embedding_norm="bert.embeddings.LayerNorm",
    pooler="bert.pooler.dense",
    classifier="classifier",
    renamings=((("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")),),
)

CLASSIFIER = "BertForSequenceClassification"
POOLED = ("BertModel", "BertForPreTraining", "BertForNextSentencePrediction")
NOT_POOLED = ("BertForMaskedLM",)

_DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}


def read(config: Mapping[str, Any]) -> Architecture:
    """A config of `model_type` bert. Raises UnsupportedModel, naming the field."""
    fields.check_architectures(config, "bert", CLASSIFIER, *POOLED, *NOT_POOLED)
    for field, value in (
        ("is_decoder", False),
        ("add_cross_attention", False),
        ("position_embedding_type", "absolute"),
    ):
        fields.check_value(config, field, value)
    filled = {**_DEFAULTS, **config}
    common = layer_normed(
        filled,
        "bert",
        inner=fields.integer(filled, "intermediate_size", fields.MAX_INTERMEDIATE_SIZE),
        max_positions=fields.integer(filled, "max_position_embeddings", fields.MAX_POSITIONS),
        norm_eps=fields.norm_eps(filled, "layer_norm_eps", 1e-12),
        activation=fields.activation(filled, "hidden_act", "gelu"),
    )
    return replace(
        common,
        vocab_size=fields.integer(filled, "vocab_size", fields.MAX_VOCAB_SIZE),
        attention="bidirectional",
        norm_place="after",
        final_norm=False,
        embedding_norm=True,
        token_types=fields.integer(filled, "type_vocab_size", fields.MAX_LABELS),
        pooled_size=0 if fields.has_class(config, *NOT_POOLED) else common.hidden_size,
        labels=fields.labels(config) if fields.has_class(config, CLASSIFIER) else 0,
    )
