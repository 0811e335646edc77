"""What is made of the rows that an encoder gives: its final norm, one row for each sequence, and a class of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from split_model.blocks import ACTIVATIONS
from split_model.checkpoint import Checkpoint
from split_model.end_parts import pool_parts
from split_model.matrix import Matrix
from split_model.norm import Norm, load_norm
from split_model.spec import ModelSpec
from split_model.weight_parts import WeightPart


class Pooling:
    """All that follows the last layer of an encoder."""

    def __init__(
        self, spec: ModelSpec, norm: Norm, pooler: Matrix | None, activation: str, classifier: Matrix | None
    ) -> None:
        """activation: behind the pooler, by the name that the spec has for it."""
        self.spec = spec
        self._norm = norm
        self._pooler, self._activation = pooler, ACTIVATIONS[activation]
        self._classifier = classifier

    @classmethod
    def load(cls, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device | str = "cpu") -> Pooling:
        """Raises BadCheckpoint."""
        parts = pool_parts(checkpoint.spec)

        def matrix(weight: WeightPart | None, bias: WeightPart | None) -> Matrix | None:
            return Matrix.load(checkpoint, [weight], [bias], dtype, device) if weight else None

        return cls(
            checkpoint.spec,
            load_norm(checkpoint, (parts.norm, parts.norm_bias), dtype, device),
            matrix(parts.pooler, parts.pooler_bias),
            checkpoint.spec.pooled_activation,
            matrix(parts.classifier, parts.classifier_bias),
        )

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the weights held."""
        return self._norm.nbytes + sum(each.nbytes for each in (self._pooler, self._classifier) if each is not None)

    @torch.inference_mode()
    def rows(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [rows, hidden], as the last layer gives it -> [rows, hidden], as the model gives it."""
        return self._norm(hidden)

    @torch.inference_mode()
    def pooled(self, rows: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor | None:
        """One row for each sequence, [sequences, pooled_size]; None where the model makes none.

        rows: as `rows` gives them; lengths: how many each sequence has.
        """
        if self._pooler is None:
            return None
        return self._activation(self._pooler(_first(rows, lengths)))

    @torch.inference_mode()
    def logits(self, rows: torch.Tensor, pooled: torch.Tensor | None, lengths: Sequence[int]) -> torch.Tensor | None:
        """float32 [sequences, labels] of what `rows` and `pooled` gave; None where the model does not classify."""
        if self._classifier is None:
            return None
        return self._classifier(_first(rows, lengths) if pooled is None else pooled).float()


def _first(rows: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """The first row of each sequence."""
    return torch.stack([each[0] for each in rows.split_with_sizes(list(lengths))])
