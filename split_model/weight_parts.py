"""Which tensors of a checkpoint a piece of the model needs, and which rows and columns of each.

The one place that knows the names of Hugging Face's llama family. A *KV group* is one KV head with the
query heads that share it; a *column* is one unit of the MLP's inner width. Imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from split_model.spec import ModelSpec

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class WeightPart:
    """Rows and columns of one tensor, whose whole shape is `full_shape`; `None` is all of them."""

    name: str
    full_shape: tuple[int, ...]
    rows: range | None = None
    columns: range | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the part itself."""
        held = (self.rows, self.columns)[: len(self.full_shape)]
        return tuple(size if part is None else len(part) for size, part in zip(self.full_shape, held, strict=True))

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class LayerParts:
    """The tensors of one layer, or of a shard of it. `None`: the architecture, or this shard, has no such tensor."""

    input_norm: WeightPart  # [hidden]
    query: WeightPart  # [heads*head_dim, hidden]
    key: WeightPart  # [kv_heads*head_dim, hidden]
    value: WeightPart  # [kv_heads*head_dim, hidden]
    query_bias: WeightPart | None
    key_bias: WeightPart | None
    value_bias: WeightPart | None
    query_norm: WeightPart | None  # [head_dim]
    key_norm: WeightPart | None  # [head_dim]
    output: WeightPart  # [hidden, heads*head_dim]
    output_bias: WeightPart | None  # [hidden]
    mlp_norm: WeightPart  # [hidden]
    gate: WeightPart  # [columns, hidden]
    up: WeightPart  # [columns, hidden]
    gate_bias: WeightPart | None
    up_bias: WeightPart | None
    down: WeightPart  # [hidden, columns]
    down_bias: WeightPart | None  # [hidden]

    def all(self) -> list[WeightPart]:
        return [part for part in self.__dict__.values() if part is not None]


def layer_parts(
    spec: ModelSpec, layer: int, kv_groups: range | None = None, columns: range | None = None
) -> LayerParts:
    """The parts of one layer; with `kv_groups` or `columns`, of a shard of it.

    The biases of the two output projections belong to the shard that holds group 0 and column 0: the
    shards' outputs are summed, and a bias must be in the sum once.
    """
    hidden, head_dim = spec.hidden_size, spec.head_dim
    prefix = f"model.layers.{layer}"

    def cut(name: str, size: int, held: range | None, bias: bool = False) -> WeightPart:
        return WeightPart(f"{prefix}.{name}", (size,) if bias else (size, hidden), rows=held)

    def cut_columns(name: str, size: int, held: range | None) -> WeightPart:
        return WeightPart(f"{prefix}.{name}", (hidden, size), columns=held)

    def whole(name: str, size: int) -> WeightPart:
        return WeightPart(f"{prefix}.{name}", (size,))

    kv_rows = _scaled(kv_groups, head_dim)
    q_rows = _scaled(kv_groups, head_dim * spec.heads_per_group)
    q_size, kv_size, width = spec.num_heads * head_dim, spec.num_kv_heads * head_dim, spec.intermediate_size
    first_heads = kv_groups is None or 0 in kv_groups
    first_columns = columns is None or 0 in columns
    return LayerParts(
        input_norm=whole("input_layernorm.weight", hidden),
        query=cut("self_attn.q_proj.weight", q_size, q_rows),
        key=cut("self_attn.k_proj.weight", kv_size, kv_rows),
        value=cut("self_attn.v_proj.weight", kv_size, kv_rows),
        query_bias=cut("self_attn.q_proj.bias", q_size, q_rows, bias=True) if spec.qkv_bias else None,
        key_bias=cut("self_attn.k_proj.bias", kv_size, kv_rows, bias=True) if spec.qkv_bias else None,
        value_bias=cut("self_attn.v_proj.bias", kv_size, kv_rows, bias=True) if spec.qkv_bias else None,
        query_norm=whole("self_attn.q_norm.weight", head_dim) if spec.qk_norm else None,
        key_norm=whole("self_attn.k_norm.weight", head_dim) if spec.qk_norm else None,
        output=cut_columns("self_attn.o_proj.weight", q_size, q_rows),
        output_bias=whole("self_attn.o_proj.bias", hidden) if spec.output_bias and first_heads else None,
        mlp_norm=whole("post_attention_layernorm.weight", hidden),
        gate=cut("mlp.gate_proj.weight", width, columns),
        up=cut("mlp.up_proj.weight", width, columns),
        gate_bias=cut("mlp.gate_proj.bias", width, columns, bias=True) if spec.mlp_bias else None,
        up_bias=cut("mlp.up_proj.bias", width, columns, bias=True) if spec.mlp_bias else None,
        down=cut_columns("mlp.down_proj.weight", width, columns),
        down_bias=whole("mlp.down_proj.bias", hidden) if spec.mlp_bias and first_columns else None,
    )


def embedding_part(spec: ModelSpec) -> WeightPart:
    """The token embedding, [vocab, hidden]."""
    return WeightPart(EMBEDDING, (spec.vocab_size, spec.hidden_size))


def head_parts(spec: ModelSpec) -> list[WeightPart]:
    """The final norm, [hidden], and the head's matrix, [vocab, hidden]: the embedding's where they are tied."""
    name = EMBEDDING if spec.tied_embeddings else HEAD
    return [WeightPart(FINAL_NORM, (spec.hidden_size,)), WeightPart(name, (spec.vocab_size, spec.hidden_size))]


def _scaled(held: range | None, size: int) -> range | None:
    return None if held is None else range(held.start * size, held.stop * size)
