"""What comes before the first layer and behind the last, as it runs in a step; of long tables only a part is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch

from device_agent.profiling.timing import Run
from split_model.checkpoint import Checkpoint
from split_model.encoder_rows import PatchRows, TextRows
from split_model.end_parts import embedding_parts, head_parts
from split_model.entry import RowEntry
from split_model.matrix import Matrix, read_table
from split_model.norm import load_norm
from split_model.pooling import Pooling
from split_model.sequences import Sequences
from split_model.stack import Embedding, Head
from split_model.weight_parts import WeightPart

READ_BYTES: Final = 128 << 20
"""Of an embedding or of a head's matrix: more than stays in a CPU's caches, so that each further part takes as long."""


class EndRuns:
    """Embedding and head of one model, or what an encoder has in their places.

    Attributes:
        whole: how many times as long as what is measured of the head the whole of it takes.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        """Raises BadCheckpoint."""
        spec = checkpoint.spec
        parts = embedding_parts(spec)
        self._spec, self._dtype = spec, dtype
        self._entry = RowEntry.load(checkpoint, dtype)
        self._patches = PatchRows.load(checkpoint, dtype) if spec.patches is not None else None
        self.whole = 1.0
        self._known, self._texts = 0, None
        table = None
        if parts.tokens is not None:
            part = _beginning(parts.tokens, dtype)
            self._known = part.shape[0]
            table = read_table(checkpoint, part, dtype)
            project = Matrix.load(checkpoint, [parts.project], [], dtype) if parts.project else None
            types = read_table(checkpoint, parts.token_types, dtype) if parts.token_types else None
            self._texts = TextRows(Embedding(table, project), types)
        self._head = self._pooling = None
        if spec.attention == "bidirectional":
            self._pooling = Pooling.load(checkpoint, dtype)
        else:
            self._head = self._read_head(checkpoint, table)

    def embedding(self, rows: int) -> Run:
        """What makes rows of tokens or of an image, and what is done to them before the first layer."""
        entry, placed = self._entry, Sequences([rows])
        if self._patches is not None and self._spec.patches is not None:
            patches, of_image = self._patches, self._spec.patches
            pixels = torch.randn((of_image.channels, *of_image.image))

            def embedded() -> torch.Tensor:
                return patches.forward(pixels)

        else:
            texts = self._texts
            assert texts is not None
            ids = torch.randint(self._known, (rows,)).tolist()

            def embedded() -> torch.Tensor:
                return texts.forward(ids)

        return embedded if entry is None else lambda: entry(embedded(), placed)

    def head(self, rows: int) -> Run:
        """What is made of the last layer's rows: logits of each, or of a text's rows what stands for all of it."""
        hidden = torch.randn((rows, self._spec.hidden_size), dtype=self._dtype)
        head, pooling = self._head, self._pooling
        if head is not None:
            return lambda: head.forward(hidden)
        assert pooling is not None

        def run() -> None:
            normed = pooling.rows(hidden)
            pooling.logits(normed, pooling.pooled(normed, [rows]), [rows])

        return run

    def _read_head(self, checkpoint: Checkpoint, table: torch.Tensor | None) -> Head:
        spec, dtype = self._spec, self._dtype
        parts = head_parts(spec)
        norm = load_norm(checkpoint, (parts.norm, parts.norm_bias), dtype)
        project = Matrix.load(checkpoint, [parts.project], [], dtype) if parts.project else None
        if spec.tied_embeddings and table is not None:
            matrix, read = Matrix(table, pack=False), len(table)
        else:
            part = _beginning(parts.matrix, dtype)
            matrix, read = Matrix.load(checkpoint, [part], [], dtype), part.shape[0]
        self.whole = spec.vocab_size / read
        return Head(norm, matrix, True, project, spec.head_scale)


def _beginning(part: WeightPart, dtype: torch.dtype) -> WeightPart:
    """The first rows of a tensor, or all of it where that is little."""
    rows, width = part.shape
    most = max(1, READ_BYTES // (width * dtype.itemsize))
    return part if rows <= most else replace(part, rows=range(most))
