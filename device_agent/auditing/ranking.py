"""Which tokens' vectors are most like given ones. Pure."""

from __future__ import annotations

import torch
from torch.nn.functional import normalize

MOST_SCORES = 2**24
"""Scores that are in memory at once."""


class Ranking:
    """The vocabulary by cosine.

    Args:
        table: float32 ``[vocabulary, width]``, a vector for each token.
        centre: float32 ``[width]``, what is taken off them first.
    """

    def __init__(self, table: torch.Tensor, centre: torch.Tensor) -> None:
        self._vectors = normalize(table - centre, dim=1)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return len(self._vectors)

    def nearest(self, vectors: torch.Tensor, most: int = 1) -> torch.Tensor:
        """int64 ``[rows, most]``: for each of ``vectors``, float32 ``[rows, width]`` without the centre, the tokens
        that are most like it, best first; fewer where the vocabulary has fewer."""
        most = min(most, self.vocabulary)
        found = [
            (part @ self._vectors.T).topk(most, dim=1).indices
            for part in torch.split(vectors, max(1, MOST_SCORES // self.vocabulary))
        ]
        return torch.cat(found) if found else torch.empty((0, most), dtype=torch.int64)
