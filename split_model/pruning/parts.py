"""Which parts of a layer's tensors some of its heads need. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from split_model.pruning.kept import KeptHeads, runs
from split_model.spec import ModelSpec
from split_model.weight_parts import WeightPart, layer_parts


def projection_parts(spec: ModelSpec, layer: int, kept: KeptHeads, first: int = 0) -> list[WeightPart]:
    """What makes queries, keys and values of the kept heads alone, to be stacked by rows.

    first: the number in the model of head 0 of `kept`, which may be about a shard.
    """
    whole, head_dim = layer_parts(spec, layer), spec.head_dim
    queries = [head + first for head in kept.heads]
    groups = [group + first // kept.group for group in kept.groups]
    wanted = ((whole.query, queries), (whole.key, groups), (whole.value, groups))
    return [_cut(part, held, head_dim, part.turned) for part, numbers in wanted for held in runs(numbers)]


def projection_bias_parts(spec: ModelSpec, layer: int, kept: KeptHeads) -> list[WeightPart]:
    """Their biases, in the same order; none of models that have none. Heads are the model's."""
    whole = layer_parts(spec, layer)
    wanted = ((whole.query_bias, kept.heads), (whole.key_bias, kept.groups), (whole.value_bias, kept.groups))
    return [_cut(part, held, spec.head_dim, False) for part, each in wanted if part is not None for held in runs(each)]


def output_parts(spec: ModelSpec, layer: int, heads: Sequence[int], first: int = 0) -> list[WeightPart]:
    """What makes rows of the contexts of some heads alone, to be stacked by columns. first: as above."""
    whole = layer_parts(spec, layer).output
    return [_cut(whole, held, spec.head_dim, not whole.turned) for held in runs([head + first for head in heads])]


def _cut(part: WeightPart, heads: range, head_dim: int, by_columns: bool) -> WeightPart:
    """Of a part that is not cut along that axis, or begins somewhere on it, some heads."""
    whole = part.columns if by_columns else part.rows
    begin = 0 if whole is None else whole.start
    held = range(begin + heads.start * head_dim, begin + heads.stop * head_dim)
    return replace(part, columns=held) if by_columns else replace(part, rows=held)
