"""One transformer layer, whole or a shard of it, as parts that can be called on their own.

A shard holds some KV groups and some MLP columns. What `attention_output` and `mlp` return is then a partial
sum: the layer's output is the sum over the shards, added to the residual once. The norms are whole in every shard and
treat each row alone, so that a group may also part the rows between its sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn import functional

from split_model.checkpoint import Checkpoint
from split_model.cross import CrossAttention
from split_model.matrix import Matrix, load_bias
from split_model.norm import NoNorm, Norm, load_norm
from split_model.offload.loader import Loader
from split_model.offload.units import Half, Unit
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

_THERE: AbstractContextManager[None] = nullcontext()


class Block:
    """Layer `layer`, or a shard of it, with its weights in memory. Only the tensors and ranges it needs are read.

    Halves that are read from the disk at each use are in memory while `using` says so, and cannot be used otherwise.

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
        loader: Loader | None = None,
    ) -> None:
        """plain: for who multiplies the keys' and values' matrices, loaded apart, by other things than rows.
        loader: of the units that do not stay in memory, cut as this block is.

        Raises BadCheckpoint where a tensor is missing or has another shape than the config says.
        """
        spec = checkpoint.spec
        parts = layer_parts(spec, layer, kv_groups, columns)

        def norm(*parts: WeightPart | None) -> Norm:
            return load_norm(checkpoint, parts, dtype, device)

        def matrix(parts: Sequence[WeightPart], biases: Sequence[WeightPart | None], pack: bool = True) -> Matrix:
            return Matrix.load(checkpoint, parts, biases, dtype, device, pack)

        def matrices(half: Half) -> list[Matrix]:
            stacked = parts.stacked(half, apart)
            if loader is None or (unit := Unit(self._layer, half)) not in loader.units:
                *others, last = stacked
                return [*(matrix(*each, not (plain and half == "attention")) for each in others), matrix(*last)]
            found = [load_bias(checkpoint, of_each, dtype, device) for _, of_each in stacked]
            self._loaders[half] = loader
            return [*loader.matrices(unit, found)]

        self._layer, self._loaders = spec.reader_layers + layer, dict[Half, Loader]()

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
        attention = matrices("attention")
        cross = [attention.pop() for _ in range(3)][::-1] if parts.cross_query else []
        *projections, self._output = attention
        self._wide, self._down = matrices("mlp")
        self.qkv = Projection(
            projections,
            self.heads,
            self.kv_heads,
            self.head_dim,
            norm(parts.query_norm) if parts.query_norm else None,
            norm(parts.key_norm) if parts.key_norm else None,
            stretch := None if spec.scaled_scores else math.sqrt(spec.head_dim),
        )
        self.cross: CrossAttention | None = None
        if cross:
            *of_rows, output = cross
            sought = Projection(of_rows, self.heads, self.kv_heads, self.head_dim, stretch=stretch)
            self.cross = CrossAttention(norm(parts.cross_norm), sought, output)

    def using(self, half: Half) -> AbstractContextManager[None]:
        """While inside, the matrices of that half are there: `qkv`, `attention_output` and `cross`, or the MLP's.

        Entering waits until they are loaded and raises as `Loader.using`; it does nothing for those that stay.
        """
        loader = self._loaders.get(half)
        return _THERE if loader is None else loader.using(Unit(self._layer, half))

    def is_streamed(self, half: Half) -> bool:
        """Whether the matrices of that half do not stay in memory."""
        return half in self._loaders

    @property
    def output_matrix(self) -> Matrix:
        """What `attention_output` multiplies by."""
        return self._output

    def stream(self, half: Half, loader: Loader) -> None:
        """Lets go of the matrices of a half that stayed; from now on they come from `loader`, which has that unit."""
        self._hold(half, loader.matrices(Unit(self._layer, half), [each.bias for each in self._held(half)]))
        self._loaders[half] = loader

    def keep(self, half: Half) -> None:
        """The other way round, while it is used: its matrices stay from now on, copied from where they are lent."""
        self._hold(half, [Matrix.copy_of(each.weight, each.bias) for each in self._held(half)])
        del self._loaders[half]

    def _held(self, half: Half) -> list[Matrix]:
        """In the order of `LayerParts.stacked`."""
        if half == "mlp":
            return [self._wide, self._down]
        cross = [] if self.cross is None else [*self.cross.projection.matrices, self.cross.output]
        return [*self.qkv.matrices, self._output, *cross]

    def _hold(self, half: Half, matrices: Sequence[Matrix]) -> None:
        if half == "mlp":
            self._wide, self._down = matrices
            return
        own = len(self.qkv.matrices)
        self.qkv.matrices, self._output = [*matrices[:own]], matrices[own]
        if self.cross is not None:
            *self.cross.projection.matrices, self.cross.output = matrices[own + 1 :]

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
