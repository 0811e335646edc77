"""One transformer layer, whole or a shard of it, as parts that can be called on their own.

A shard holds some KV groups and some MLP columns. What `attention_output` and `mlp` return is then a partial
sum: the layer's output is the sum over the shards, added to the residual once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from split_model.checkpoint import Checkpoint
from split_model.matrix import Matrix, read_stacked
from split_model.norm import RmsNorm
from split_model.weight_parts import WeightPart, layer_parts

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


class Block:
    """Layer `layer`, or a shard of it. Only the tensors and ranges it needs are read."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        layer: int,
        dtype: torch.dtype,
        kv_groups: range | None = None,
        columns: range | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Raises BadCheckpoint where a tensor is missing or has another shape than the config says."""
        spec = checkpoint.spec
        parts = layer_parts(spec, layer, kv_groups, columns)

        def norm(part: WeightPart) -> RmsNorm:
            return RmsNorm(read_stacked(checkpoint, [part], dtype, device), spec.norm_eps)

        def matrix(parts: list[WeightPart], biases: list[WeightPart | None]) -> Matrix:
            return Matrix.load(checkpoint, parts, biases, dtype, device)

        self.window = spec.windows[layer]
        self.kv_heads = spec.num_kv_heads if kv_groups is None else len(kv_groups)
        self.heads = self.kv_heads * spec.heads_per_group
        self.head_dim = spec.head_dim
        self.columns = spec.intermediate_size if columns is None else len(columns)
        self._half = spec.head_dim // 2
        self._rotated = self.heads + self.kv_heads
        self._all_heads = self.heads + 2 * self.kv_heads
        self._activation = _ACTIVATIONS[spec.activation]

        self._input_norm = norm(parts.input_norm)
        self._qkv = matrix([parts.query, parts.key, parts.value], [parts.query_bias, parts.key_bias, parts.value_bias])
        self._query_norm = norm(parts.query_norm) if parts.query_norm else None
        self._key_norm = norm(parts.key_norm) if parts.key_norm else None
        self._output = matrix([parts.output], [parts.output_bias])
        self._mlp_norm = norm(parts.mlp_norm)
        self._gate_up = matrix([parts.gate, parts.up], [parts.gate_bias, parts.up_bias])
        self._down = matrix([parts.down], [parts.down_bias])

    @property
    def adds_output_bias(self) -> bool:
        """Whether this shard adds the bias of the attention's output projection: of all shards, that with group 0."""
        return self._output.bias is not None

    @property
    def adds_down_bias(self) -> bool:
        """Whether this shard adds the bias of the MLP's output projection: of all shards, that with column 0."""
        return self._down.bias is not None

    def qkv(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Norm, projections, biases, q and k norms and rotation.

        hidden [rows, hidden]; cos, sin [rows, 1, head_dim] as `Rope.span` gives them.
        Returns q [rows, heads, head_dim], k and v [rows, kv_heads, head_dim].
        """
        projected = self._qkv(self._input_norm(hidden))
        heads = projected.view(hidden.shape[0], self._all_heads, self.head_dim)
        rotated = heads.narrow(1, 0, self._rotated)
        if self._query_norm is not None and self._key_norm is not None:
            q = self._query_norm(heads.narrow(1, 0, self.heads))
            k = self._key_norm(heads.narrow(1, self.heads, self.kv_heads))
            rotated = torch.cat((q, k), 1)
        rotated = torch.addcmul(rotated * cos, rotated.roll(self._half, -1), sin)
        q, k = rotated.split_with_sizes([self.heads, self.kv_heads], 1)
        return q, k, heads.narrow(1, self._rotated, self.kv_heads)

    def attention_output(self, context: torch.Tensor) -> torch.Tensor:
        """context [rows, heads * head_dim] -> [rows, hidden], a partial sum, without the residual."""
        return self._output(context)

    def mlp(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [rows, hidden] -> [rows, hidden], norm inside; a partial sum, without the residual."""
        wide = self._gate_up(self._mlp_norm(hidden))
        gate, up = wide.split_with_sizes([self.columns, self.columns], 1)
        return self._down(self._activation(gate).mul_(up))

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the weights held."""
        norms = [self._input_norm, self._mlp_norm, self._query_norm, self._key_norm]
        matrices = [self._qkv, self._output, self._gate_up, self._down]
        return sum(norm.weight.nbytes for norm in norms if norm is not None) + sum(each.nbytes for each in matrices)
