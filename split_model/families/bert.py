"""BERT: rows see all of their text, layer norm after each sum, learned positions and token types. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from split_model.families import fields
from split_model.families.architecture import Architecture
from split_model.families.names import LayerNames, Names
from split_model.rope_spec import RopeSpec

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
NOT_POOLED = ("BertForMaskedLM",)  # Only its rows are computed, not what it says of masked tokens.

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
    hidden_size = fields.integer(filled, "hidden_size", fields.MAX_HIDDEN_SIZE)
    num_layers = fields.integer(filled, "num_hidden_layers", fields.MAX_LAYERS)
    num_heads = fields.integer(filled, "num_attention_heads", fields.MAX_HEADS)
    head_dim = fields.even_head_dim(filled, "hidden_size", "num_attention_heads")
    return Architecture(
        model_type="bert",
        vocab_size=fields.integer(filled, "vocab_size", fields.MAX_VOCAB_SIZE),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        intermediate_size=fields.integer(filled, "intermediate_size", fields.MAX_INTERMEDIATE_SIZE),
        norm_eps=fields.norm_eps(filled, "layer_norm_eps", 1e-12),
        activation=fields.activation(filled, "hidden_act", "gelu"),
        rope=RopeSpec.none(head_dim),
        tied_embeddings=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        qk_norm=False,
        windows=(None,) * num_layers,
        max_positions=fields.integer(filled, "max_position_embeddings", fields.MAX_POSITIONS),
        bos_token_id=None,
        eos_token_ids=(),
        dtype=fields.dtype(filled),
        attention="bidirectional",
        positions="learned",
        norm="layer",
        norm_place="after",
        final_norm=False,
        gated_mlp=False,
        embedding_norm=True,
        token_types=fields.integer(filled, "type_vocab_size", fields.MAX_LABELS),
        pooled_size=0 if fields.has_class(config, *NOT_POOLED) else hidden_size,
        labels=fields.labels(config) if fields.has_class(config, CLASSIFIER) else 0,
    )
