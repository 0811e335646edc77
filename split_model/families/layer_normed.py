"""What the older families have in common: layer norms, learned positions, biases, a plain MLP. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from split_model.families import fields
from split_model.families.architecture import Architecture
from split_model.rope_spec import RopeSpec


def layer_normed(
    config: Mapping[str, Any],
    model_type: str,
    *,
    hidden: str = "hidden_size",
    layers: str = "num_hidden_layers",
    heads: str = "num_attention_heads",
    inner: int,
    max_positions: int,
    norm_eps: float,
    activation: str,
) -> Architecture:
    """Such a model, without a vocabulary; its family's reader replaces what is not so, and adds what it has besides.

    Each head has keys and values of its own, and all heads together are as wide as a row.

    Args:
        hidden, layers, heads: what the config calls its sizes.
        inner: the width of the MLP. The rest is as of `Architecture`.

    Raises UnsupportedModel, naming the field.
    """
    num_layers, num_heads = (
        fields.integer(config, layers, fields.MAX_LAYERS),
        fields.integer(config, heads, fields.MAX_HEADS),
    )
    head_dim = fields.even_head_dim(config, hidden, heads)
    return Architecture(
        model_type=model_type,
        vocab_size=0,
        hidden_size=num_heads * head_dim,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        intermediate_size=inner,
        norm_eps=norm_eps,
        activation=activation,
        rope=RopeSpec.none(head_dim),
        tied_embeddings=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        qk_norm=False,
        windows=(None,) * num_layers,
        max_positions=max_positions,
        bos_token_id=None,
        eos_token_ids=(),
        dtype=fields.dtype(config),
        positions="learned",
        norm="layer",
        gated_mlp=False,
    )
