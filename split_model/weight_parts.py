"""Which tensors of a checkpoint a piece of the model needs, and which rows and columns of each.

A *KV group* is one KV head with the query heads that share it; a *column* is one unit of the MLP's inner width. What
tensors are called is the family's affair, see `families.names`. Imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from split_model.offload.units import Half
from split_model.spec import ModelSpec


@dataclass(frozen=True)
class WeightPart:
    """Rows and columns of one tensor, whose whole shape is `full_shape`; `None` is all of them.

    A tensor of more than two dimensions is a matrix of its first one and the others.
    turned: the tensor is stored [in, out]; rows and columns are those of the file, `shape` is [out, in].
    """

    name: str
    full_shape: tuple[int, ...]
    rows: range | None = None
    columns: range | None = None
    turned: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the part itself."""
        full = self.full_shape if len(self.full_shape) < 3 else (self.full_shape[0], math.prod(self.full_shape[1:]))
        held = (self.rows, self.columns)[: len(full)]
        stored = tuple(size if part is None else len(part) for size, part in zip(full, held, strict=True))
        return stored[::-1] if self.turned else stored

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


class Parts:
    """Tensors by what they are for."""

    def all(self) -> list[WeightPart]:
        """Those that there are."""
        return [part for part in self.__dict__.values() if part is not None]


@dataclass(frozen=True)
class LayerParts(Parts):
    """The tensors of one layer, or of a shard of it. `None`: the architecture, or this shard, has no such tensor."""

    input_norm: WeightPart  # [hidden]
    input_norm_bias: WeightPart | None
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
    mlp_norm_bias: WeightPart | None
    gate: WeightPart | None  # [columns, hidden]
    up: WeightPart  # [columns, hidden]
    gate_bias: WeightPart | None
    up_bias: WeightPart | None
    down: WeightPart  # [hidden, columns]
    down_bias: WeightPart | None  # [hidden]
    cross_norm: WeightPart | None = None  # [hidden]
    cross_query: WeightPart | None = None  # [heads*head_dim, hidden]
    cross_key: WeightPart | None = None  # [kv_heads*head_dim, hidden]
    cross_value: WeightPart | None = None  # [kv_heads*head_dim, hidden]
    cross_output: WeightPart | None = None  # [hidden, heads*head_dim]

    def stacked(self, half: Half, apart: bool = False) -> list[tuple[list[WeightPart], list[WeightPart | None]]]:
        """The matrices of half a layer, in the order of use: what each is made of, stacked by rows, and the biases.

        apart: whether queries are a matrix of their own. Cross-attention's three follow the attention's own, and its
        queries always are.
        """
        if half == "mlp":
            wide, biases = ([self.gate], [self.gate_bias]) if self.gate is not None else ([], [])
            return [([*wide, self.up], [*biases, self.up_bias]), ([self.down], [self.down_bias])]
        weights, biases = [self.query, self.key, self.value], [self.query_bias, self.key_bias, self.value_bias]
        cuts = (slice(1), slice(1, 3)) if apart else (slice(3),)
        own = [*((weights[cut], biases[cut]) for cut in cuts), ([self.output], [self.output_bias])]
        if not (self.cross_query and self.cross_key and self.cross_value and self.cross_output):
            return own
        own += [([self.cross_query], [None]), ([self.cross_key, self.cross_value], [None])]
        return [*own, ([self.cross_output], [None])]


def layer_parts(
    spec: ModelSpec, layer: int, kv_groups: range | None = None, columns: range | None = None
) -> LayerParts:
    """The parts of one layer; with `kv_groups` or `columns`, of a shard of it.

    The biases of the two output projections belong to the shard that holds group 0 and column 0: the
    shards' outputs are summed, and a bias must be in the sum once.
    """
    hidden, head_dim, names = spec.hidden_size, spec.head_dim, spec.names.layer
    q_size, kv_size, width = spec.num_heads * head_dim, spec.num_kv_heads * head_dim, spec.intermediate_size
    kv_rows = _scaled(kv_groups, head_dim)
    q_rows = _scaled(kv_groups, head_dim * spec.heads_per_group)
    first_heads = kv_groups is None or 0 in kv_groups
    first_columns = columns is None or 0 in columns
    make = Maker(spec, spec.names.layers.format(layer))
    thirds = (0, q_size, q_size + kv_size, q_size + 2 * kv_size) if names.query == names.key else None

    def into_heads(part: int, module: str, size: int, held: range | None) -> tuple[WeightPart, WeightPart | None]:
        total = size
        if thirds:
            held, total = _moved(range(size) if held is None else held, thirds[part]), thirds[3]
        return make.outputs(module, total, hidden, held), make.bias(module, total, held, spec.qkv_bias)

    def into_columns(module: str) -> tuple[WeightPart, WeightPart | None]:
        return make.outputs(module, width, hidden, columns), make.bias(module, width, columns, spec.mlp_bias)

    query, query_bias = into_heads(0, names.query, q_size, q_rows)
    key, key_bias = into_heads(1, names.key, kv_size, kv_rows)
    value, value_bias = into_heads(2, names.value, kv_size, kv_rows)
    up, up_bias = into_columns(names.up)
    gate, gate_bias = into_columns(names.gate) if spec.gated_mlp else (None, None)
    cross: dict[str, WeightPart] = {}
    if spec.attention == "cross":
        assert (spec.norm, spec.norm_place) == ("rms", "before") and not (spec.qkv_bias or spec.output_bias)
        cross = {
            "cross_norm": make.weight(names.cross_norm, hidden),
            "cross_query": make.outputs(names.cross_query, q_size, hidden, q_rows),
            "cross_key": make.outputs(names.cross_key, kv_size, hidden, kv_rows),
            "cross_value": make.outputs(names.cross_value, kv_size, hidden, kv_rows),
            "cross_output": make.inputs(names.cross_output, hidden, q_size, q_rows),
        }
    return LayerParts(
        input_norm=make.weight(names.input_norm, hidden),
        input_norm_bias=make.bias(names.input_norm, hidden, None, spec.norm == "layer"),
        query=query,
        key=key,
        value=value,
        query_bias=query_bias,
        key_bias=key_bias,
        value_bias=value_bias,
        query_norm=make.weight(names.query_norm, head_dim) if spec.qk_norm else None,
        key_norm=make.weight(names.key_norm, head_dim) if spec.qk_norm else None,
        output=make.inputs(names.output, hidden, q_size, q_rows),
        output_bias=make.bias(names.output, hidden, None, spec.output_bias and first_heads),
        mlp_norm=make.weight(names.mlp_norm, hidden),
        mlp_norm_bias=make.bias(names.mlp_norm, hidden, None, spec.norm == "layer"),
        gate=gate,
        up=up,
        gate_bias=gate_bias,
        up_bias=up_bias,
        down=make.inputs(names.down, hidden, width, columns),
        down_bias=make.bias(names.down, hidden, None, spec.mlp_bias and first_columns),
        **cross,
    )


def relative_part(spec: ModelSpec, kv_groups: range | None = None) -> WeightPart | None:
    """What is added to scores by distance, [buckets, heads]: of whoever holds these heads of any layer."""
    if spec.relative is None:
        return None
    held = _scaled(kv_groups, spec.heads_per_group)
    return WeightPart(spec.names.relative, (spec.relative.buckets, spec.num_heads), columns=held)


class Maker:
    """Parts of modules whose names begin alike, as the family has them."""

    def __init__(self, spec: ModelSpec, prefix: str) -> None:
        self._spec, self._prefix = spec, prefix

    def outputs(self, module: str, size: int, inputs: int, held: range | None) -> WeightPart:
        """Some outputs of a matrix [size, inputs]."""
        name = f"{self._prefix}{module}.weight"
        if self._spec.names.turned:
            return WeightPart(name, (inputs, size), columns=held, turned=True)
        return WeightPart(name, (size, inputs), rows=held)

    def inputs(self, module: str, size: int, inputs: int, held: range | None) -> WeightPart:
        """Some inputs of a matrix [size, inputs]."""
        name = f"{self._prefix}{module}.weight"
        if self._spec.names.turned:
            return WeightPart(name, (inputs, size), rows=held, turned=True)
        return WeightPart(name, (size, inputs), columns=held)

    def bias(self, module: str, size: int, held: range | None, there: bool) -> WeightPart | None:
        return WeightPart(f"{self._prefix}{module}.bias", (size,), rows=held) if there else None

    def norm(self, module: str, size: int, there: bool) -> tuple[WeightPart | None, WeightPart | None]:
        """Weight and bias."""
        if not there:
            return None, None
        return self.weight(module, size), self.bias(module, size, None, self._spec.norm == "layer")

    def weight(self, module: str, size: int) -> WeightPart:
        return WeightPart(f"{self._prefix}{module}.weight", (size,))


def _scaled(held: range | None, size: int) -> range | None:
    return None if held is None else range(held.start * size, held.stop * size)


def _moved(held: range, by: int) -> range:
    return range(held.start + by, held.stop + by)
