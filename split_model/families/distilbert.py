"""DistilBERT: BERT's layers without token types and pooler; its classifier has a layer of its own. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from split_model.families import fields
from split_model.families.architecture import Architecture
from split_model.families.layer_normed import layer_normed
from split_model.families.names import LayerNames, Names

NAMES = Names(
    prefix="distilbert.",
    layers="distilbert.transformer.layer.{}.",
    layer=LayerNames(
        input_norm="sa_layer_norm",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        output="attention.out_lin",
        mlp_norm="output_layer_norm",
        up="ffn.lin1",
        down="ffn.lin2",
    ),
    embedding="distilbert.embeddings.word_embeddings.weight",
    positions="distilbert.embeddings.position_embeddings.weight",
    embedding_norm="distilbert.embeddings.LayerNorm",
    pooler="pre_classifier",
    classifier="classifier",
)

CLASSIFIER = "DistilBertForSequenceClassification"
NOT_POOLED = ("DistilBertModel", "DistilBertForMaskedLM")

COMMON = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
}

_DEFAULTS = {
    "vocab_size": 30522,
    "dim": 768,
    "n_layers": 6,
    "n_heads": 12,
    "hidden_dim": 3072,
    "max_position_embeddings": 512,
}
_NORM_EPS = 1e-12  # No config says it.


def read(config: Mapping[str, Any]) -> Architecture:
    """A config of `model_type` distilbert. Raises UnsupportedModel, naming the field."""
    fields.check_architectures(config, "distilbert", CLASSIFIER, *NOT_POOLED)
    filled = {**_DEFAULTS, **config}
    common = layer_normed(
        filled,
        "distilbert",
        hidden="dim",
        layers="n_layers",
        heads="n_heads",
        inner=fields.integer(filled, "hidden_dim", fields.MAX_INTERMEDIATE_SIZE),
        max_positions=fields.integer(filled, "max_position_embeddings", fields.MAX_POSITIONS),
        norm_eps=_NORM_EPS,
        activation=fields.activation(filled, "activation", "gelu"),
    )
    classifies = fields.has_class(config, CLASSIFIER)
    return replace(
        common,
        vocab_size=fields.integer(filled, "vocab_size", fields.MAX_VOCAB_SIZE),
        attention="bidirectional",
        norm_place="after",
        final_norm=False,
        embedding_norm=True,
        pooled_size=common.hidden_size if classifies else 0,
        pooled_activation="relu",
        labels=fields.labels(config) if classifies else 0,
    )
