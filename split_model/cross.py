"""Attention to what an encoder has read: its keys and values are made once, and only looked at from then on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from split_model.matrix import Matrix
from split_model.norm import Norm
from split_model.projection import Projection


class CrossAttention:
    """Between a decoder layer's attention and its MLP, or the part of it of some KV groups.

    Attributes:
        norm: what comes before `query`: [rows, hidden] -> [rows, hidden].
        projection: queries of the decoder's rows, keys and values of the encoder's; loaded apart.
        output: context [rows, heads * head_dim] -> [rows, hidden], a partial sum, without the residual.
    """

    def __init__(self, norm: Norm, projection: Projection, output: Matrix) -> None:
        self.norm, self.projection, self.output = norm, projection, output

    @property
    def nbytes(self) -> int:
        """Bytes of the weights held."""
        return self.norm.nbytes + self.projection.nbytes + self.output.nbytes


@dataclass(frozen=True)
class ReadSource:
    """One text that was read, as the layers of a stack see it: keys and values [kv_heads, positions, head_dim] each."""

    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.layers)


class Memory:
    """What the rows of a step attend to: each span of them a source of its own."""

    def __init__(self, sources: Sequence[ReadSource], rows: Sequence[int]) -> None:
        """rows: of each span, in the order of the batch. Raises ValueError unless there is a source for each."""
        if len(sources) != len(rows):
            raise ValueError(f"{len(rows)} spans of rows cannot have {len(sources)} sources")
        self._sources, self._rows = list(sources), list(rows)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """layer: from 0 on, in the stack. q [rows, heads, head_dim] -> context [rows, heads * head_dim]."""
        if not q.shape[1]:
            return q.new_empty((q.shape[0], 0))
        spans = zip(self._sources, q.split_with_sizes(self._rows), strict=True)
        return torch.cat([_attend(part, *source.layers[layer]) for source, part in spans if len(part)])


def _attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    heads = q.transpose(0, 1)[None]
    context = scaled_dot_product_attention(heads, keys[None], values[None], enable_gqa=heads.shape[1] != len(keys))
    return context[0].transpose(0, 1).flatten(1)
