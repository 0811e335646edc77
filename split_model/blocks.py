"""One transformer layer, whole or a shard of it, as parts that can be called on their own.

A shard holds some KV groups and some MLP columns. What `attention_output` and `mlp` return is then a partial
sum: the layer's output is the sum over the shards, added to the residual once. The norms are whole in every shard and
treat each row alone, so that a group may also part the rows between its sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from split_model.checkpoint import Checkpoint
from split_model.cross import CrossAttention
from split_model.matrix import Matrix
from split_model.norm import NoNorm, Norm, load_norm
from split_model.projection import Projection
from split_model.weight_parts import WeightPart, layer_parts

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "tanh": torch.tanh,
}


Sum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Rows [rows, hidden] and what is added to them, to the rows that go on."""

_ADDED: tuple[Sum, Sum] = (torch.add, torch.Tensor.add_)


class Block:
    """Layer `layer`, or a shard of it, with its weights in memory. Only the tensors and ranges it needs are read.

    Attributes:
        input_norm: what comes before `qkv`: [rows, hidden] -> [rows, hidden].
        qkv: queries, keys and values; with `apart` also of different rows, see `Projection`.
        after_attention: rows as they came to `input_norm`, and the whole sum of what attention makes of them, to the
            rows for `mlp_norm`, a new tensor.
        mlp_norm: what comes before `mlp`.
        cross: attention to what an encoder has read, behind `after_attention`; None in most models.
        after_mlp: the same behind the MLP. It may change the rows that came to `mlp_norm`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        layer: int,
        dtype: torch.dtype,
        kv_groups: range | None = None,
        columns: range | None = None,
        device: torch.device | str = "cpu",
        apart: bool = False,
        plain: bool = False,
    ) -> None:
        """plain: for who multiplies the keys' and values' matrices, loaded apart, by other things than rows.

        Raises BadCheckpoint where a tensor is missing or has another shape than the config says.
        """
        spec = checkpoint.spec
        parts = layer_parts(spec, layer, kv_groups, columns)

        def norm(*parts: WeightPart | None) -> Norm:
            return load_norm(checkpoint, parts, dtype, device)

        def matrix(parts: Sequence[WeightPart], biases: Sequence[WeightPart | None], pack: bool = True) -> Matrix:
            return Matrix.load(checkpoint, parts, biases, dtype, device, pack)

        self.window = spec.windows[layer]
        self.kv_heads = spec.num_kv_heads if kv_groups is None else len(kv_groups)
        self.heads = self.kv_heads * spec.heads_per_group
        self.head_dim = spec.head_dim
        self.columns = spec.intermediate_size if columns is None else len(columns)
        self._activation = ACTIVATIONS[spec.activation]
        self._gated = parts.gate is not None

        norms = norm(parts.input_norm, parts.input_norm_bias), norm(parts.mlp_norm, parts.mlp_norm_bias)
        self._norm_bytes = sum(each.nbytes for each in norms)
        self.input_norm, self.mlp_norm = norms if spec.norm_place == "before" else (NoNorm(), NoNorm())
        self.after_attention, self.after_mlp = _ADDED if spec.norm_place == "before" else map(_summed, norms)
        weights, biases = [parts.query, parts.key, parts.value], [parts.query_bias, parts.key_bias, parts.value_bias]
        cuts = (slice(1), slice(1, 3)) if apart else (slice(3),)
        self.qkv = Projection(
            [matrix(weights[cut], biases[cut], not plain) for cut in cuts],
            self.heads,
            self.kv_heads,
            self.head_dim,
            norm(parts.query_norm) if parts.query_norm else None,
            norm(parts.key_norm) if parts.key_norm else None,
            stretch := None if spec.scaled_scores else math.sqrt(spec.head_dim),
        )
        self.cross: CrossAttention | None = None
        if parts.cross_query and parts.cross_key and parts.cross_value and parts.cross_output:
            apart_matrices = [matrix([parts.cross_query], []), matrix([parts.cross_key, parts.cross_value], [])]
            self.cross = CrossAttention(
                norm(parts.cross_norm),
                Projection(apart_matrices, self.heads, self.kv_heads, self.head_dim, stretch=stretch),
                matrix([parts.cross_output], []),
            )
        self._output = matrix([parts.output], [parts.output_bias])
        wide = [each for each in (parts.gate, parts.up) if each is not None]
        self._wide = matrix(wide, [parts.gate_bias, parts.up_bias])
        self._down = matrix([parts.down], [parts.down_bias])

    def attention_output(self, context: torch.Tensor) -> torch.Tensor:
        """context [rows, heads * head_dim] -> [rows, hidden], a partial sum, without the residual."""
        return self._output(context)

    def mlp(self, normed: torch.Tensor) -> torch.Tensor:
        """normed [rows, hidden], behind `mlp_norm` -> [rows, hidden], a partial sum, without the residual."""
        return self._down(self.mlp_inner(normed))

    def mlp_inner(self, normed: torch.Tensor) -> torch.Tensor:
        """The first half of `mlp`: normed [rows, hidden] -> [rows, columns]."""
        wide = self._wide(normed)
        if not self._gated:
            return self._activation(wide)
        gate, up = wide.split_with_sizes([self.columns, self.columns], 1)
        return self._activation(gate).mul_(up)

    def mlp_output(self, inner: torch.Tensor) -> torch.Tensor:
        """The second half of `mlp`: [rows, columns] -> [rows, hidden]."""
        return self._down(inner)

    def drop(self) -> None:
        """Lets go of all weights, whoever still knows the block. It cannot compute any more."""
        vars(self).clear()

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the weights held."""
        cross = 0 if self.cross is None else self.cross.nbytes
        return self._norm_bytes + cross + sum(each.nbytes for each in (self.qkv, self._output, self._wide, self._down))


def _summed(norm: Norm) -> Sum:
    """The norm of a sum."""
    return lambda rows, added: norm(rows + added)
