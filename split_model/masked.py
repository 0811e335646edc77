"""What an encoder says that masked tokens may be: BertForMaskedLM's head, and DistilBERT's."""

from __future__ import annotations

import torch

from split_model.blocks import ACTIVATIONS
from split_model.checkpoint import Checkpoint
from split_model.end_parts import masked_parts
from split_model.errors import BadCheckpoint
from split_model.matrix import Matrix, read_stacked
from split_model.norm import Norm, load_norm
from split_model.stack import Embedding


class MaskedHead:
    """Rows to logits of the vocabulary: norm(activation(matrix x + bias)), and then the embedding's matrix."""

    def __init__(self, transform: Matrix, activation: str, norm: Norm, matrix: Matrix) -> None:
        """activation: behind the first matrix, by the name that the spec has for it."""
        self._transform, self._activation, self._norm, self._matrix = transform, ACTIVATIONS[activation], norm, matrix

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        embedding: Embedding,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> MaskedHead:
        """Shares `embedding`, of the same dtype, where the file has no matrix of the head's own.

        Raises BadCheckpoint where the files have no such head, UnsupportedModel for a family without one.
        """
        parts = masked_parts(checkpoint.spec)
        transform = Matrix.load(checkpoint, [parts.transform], [parts.transform_bias], dtype, device)
        norm = load_norm(checkpoint, (parts.norm, parts.norm_bias), dtype, device)
        try:
            matrix = Matrix.load(checkpoint, [parts.matrix], [parts.bias], dtype, device)
        except BadCheckpoint:
            bias = read_stacked(checkpoint, [parts.bias], dtype, device)
            matrix = Matrix(embedding.weight, bias, pack=False)
        return cls(transform, checkpoint.spec.activation, norm, matrix)

    @torch.inference_mode()
    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """rows [rows, hidden], as `Pooling.rows` gives them -> float32 [rows, vocab]."""
        return self._matrix(self._norm(self._activation(self._transform(rows)))).float()
