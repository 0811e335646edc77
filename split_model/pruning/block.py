"""A layer without some of its heads: they are left out before the projections, so that their time is saved."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from split_model.blocks import Block
from split_model.checkpoint import Checkpoint
from split_model.matrix import Matrix, empty_for_products, load_bias
from split_model.projection import Projection
from split_model.pruning.kept import KeptHeads, runs
from split_model.pruning.parts import output_parts, projection_bias_parts, projection_parts
from split_model.weight_parts import WeightPart


class CannotPrune(ValueError):
    """Heads of this layer or model cannot be left out."""


class PrunedBlock(Block):
    """`block` with some of its heads, sharing all other weights with it, which must stay loaded.

    Rows of the query, key and value matrices and columns of the output's are copied, and packed where matrices are;
    where the kept heads of a plain output matrix are neighbours they are a view. Only heads that the block does not
    have are read from the checkpoint.
    """

    def __init__(
        self,
        block: Block,
        checkpoint: Checkpoint,
        layer: int,
        kept: KeptHeads,
        first: int = 0,
        means: torch.Tensor | None = None,
        instead: KeptHeads | None = None,
    ) -> None:
        """layer: its number in the model. kept: of the block's own heads, of which `first` is the first in the model.
        means: of each of the block's heads what its context is on average, float32 [heads, head_dim]; what the output
        matrix makes of those of pruned heads is added to each row. None: nothing is.
        instead: heads of the model that are computed in the place of those that are kept, whoever has these: they are
        read from the checkpoint.

        Raises CannotPrune where the block has other heads, is read from the disk at each use, attends to another text
        too, or its queries are a matrix of their own; BadCheckpoint.
        """
        whole = block.qkv.matrices
        if kept.total != block.heads or kept.group * block.kv_heads != block.heads:
            raise CannotPrune(f"the layer has {block.heads} heads over {block.kv_heads}, not {kept.total}")
        if block.is_streamed("attention") or block.cross is not None or len(whole) != 1:
            raise CannotPrune("heads are left out of layers that stay in memory and attend to their own text alone")
        vars(self).update(vars(block))
        own = _Cut(block, checkpoint, layer, kept, first)
        found, cut = (kept, own) if instead is None else (instead, _Cut(block, checkpoint, layer, instead, None))
        self.kept = found
        self.heads, self.kv_heads = len(found.groups) * found.widest, len(found.groups)
        with torch.inference_mode():
            self.qkv = _SomeHeads(block.qkv, Matrix(cut.projection(), cut.projection_bias()), found)
            self._output = Matrix(cut.output(found.heads), own.output_bias(means))
        self._places = None if found.is_even else torch.tensor(found.places, device=self._output.device)

    def attention_output(self, context: torch.Tensor) -> torch.Tensor:
        """See `Block`; context [rows, heads * head_dim], queries that came again included."""
        if self._places is not None:
            context = context.view(len(context), self.heads, self.head_dim).index_select(1, self._places).flatten(1)
        return self._output(context)

    @property
    def own_bytes(self) -> int:
        """Bytes that are held beside the whole block's."""
        return sum(matrix.nbytes for matrix in (*self.qkv.matrices, self._output))


class _SomeHeads(Projection):
    """Queries of the kept heads, as many for each KV head as attention wants."""

    def __init__(self, whole: Projection, matrix: Matrix, kept: KeptHeads) -> None:
        vars(self).update(vars(whole.of_heads([matrix], len(kept.heads), len(kept.groups))))
        self._filled = None if kept.is_even else torch.tensor(kept.filled, device=matrix.device)

    def __call__(
        self, normed: torch.Tensor, cos: torch.Tensor | None = None, sin: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v = super().__call__(normed, cos, sin)
        return (q if self._filled is None else q.index_select(1, self._filled)), k, v


class _Cut:
    """The weights of some heads of a layer, from memory where they are there."""

    def __init__(self, block: Block, checkpoint: Checkpoint, layer: int, kept: KeptHeads, first: int | None) -> None:
        """first: the number in the model of the block's first head; None: heads are the model's, not the block's."""
        self._checkpoint, self._layer, self._kept, self._first = checkpoint, layer, kept, first or 0
        self._in_block = first is not None
        self._size, self._hidden = block.head_dim, checkpoint.spec.hidden_size
        [self._whole], self._whole_output = block.qkv.matrices, block.output_matrix

    @cached_property
    def _output(self) -> torch.Tensor:
        return self._whole_output.elements()

    def projection(self) -> torch.Tensor:
        """[kept heads + 2 * kept KV heads, each head_dim, hidden]."""
        if self._in_block:
            return _some(self._whole.elements(), self._rows(), 0)
        parts = projection_parts(self._checkpoint.spec, self._layer, self._kept, self._first)
        height = (len(self._kept.heads) + 2 * len(self._kept.groups)) * self._size
        return self._read(parts, (height, self._hidden), 0)

    def projection_bias(self) -> torch.Tensor | None:
        if not self._in_block:
            biases = projection_bias_parts(self._checkpoint.spec, self._layer, self._kept)
            return load_bias(self._checkpoint, biases, self._whole.dtype, self._whole.device)
        bias = self._whole.bias
        return None if bias is None else bias.index_select(0, self._rows())

    def output(self, heads: Sequence[int]) -> torch.Tensor:
        """[hidden, heads * head_dim]."""
        size = self._size
        if self._in_block:
            held = runs(heads)
            if len(held) == 1:
                return self._output.narrow(1, held[0].start * size, len(held[0]) * size)
            return _some(self._output, _each(heads, size, self._output.device), 1)
        parts = output_parts(self._checkpoint.spec, self._layer, heads, self._first)
        return self._read(parts, (self._hidden, len(heads) * size), 1)

    def output_bias(self, means: torch.Tensor | None) -> torch.Tensor | None:
        """The whole layer's, and what pruned heads add on average."""
        bias, pruned = self._whole_output.bias, self._kept.pruned
        if means is None or not pruned:
            return bias
        matrix = self.output(pruned)
        added = matrix.float() @ means[list(pruned)].flatten().to(matrix.device)
        return (added if bias is None else added + bias.float()).to(matrix.dtype)

    def _rows(self) -> torch.Tensor:
        """Rows of the whole projection, queries, keys and values one behind the other."""
        kept, size = self._kept, self._size
        kv_heads = kept.total // kept.group
        numbers = [*kept.heads, *(kept.total + each for each in kept.groups)]
        numbers += [kept.total + kv_heads + each for each in kept.groups]
        return _each(numbers, size, self._whole.device)

    def _read(self, parts: Sequence[WeightPart], shape: tuple[int, int], along: int) -> torch.Tensor:
        """Parts one after the other along an axis, from the files."""
        out = empty_for_products(shape, self._whole.dtype, self._whole.device)
        sizes = [part.shape[along] for part in parts]
        for part, room in zip(parts, out.split_with_sizes(sizes, along) if parts else (), strict=True):
            self._checkpoint.read_into(part, room)
        return out


def _some(weight: torch.Tensor, numbers: torch.Tensor, along: int) -> torch.Tensor:
    """These rows (0) or columns (1), lying as the whole weight lies."""
    if weight.is_contiguous():
        return weight.index_select(along, numbers)
    return weight.t().index_select(1 - along, numbers).t()


def _each(heads: Sequence[int], size: int, device: torch.device) -> torch.Tensor:
    """The rows or columns of some heads, `size` each."""
    first = torch.tensor(list(heads), dtype=torch.int64)[:, None] * size
    return (first + torch.arange(size)).flatten().to(device)
