"""Trained inversion: a linear map from rows back to embeddings, learned from a public text. Pure.

It needs the embedding, and the first layers, by which anybody who has them makes pairs of any text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from device_agent.auditing.attack import Reading, Sent, all_rows
from device_agent.auditing.known import Pairs, Scaling
from device_agent.auditing.ranking import Ranking

RIDGES = (1e-5, 1e-3, 1e-1)
"""Of which the one is taken that does best on a fifth of the pairs: what is added to each direction's variance of 1."""


class LinearInversion:
    """Ridge regression from rows to embeddings, then the nearest embedding.

    Args:
        table: float32 ``[vocabulary, hidden_size]``, the rows of each token as they enter layer 0.
        known: rows of a public text, two at least.
    """

    name = "trained inversion"

    def __init__(self, table: torch.Tensor, known: Pairs) -> None:
        self._ranking = Ranking(table, table[known.ids].mean(dim=0))
        self._scaling = Scaling.of(known.rows)
        learned, kept_back = known.parted()
        tried = [(self._share(self._fitted(table, learned, ridge), kept_back), -ridge) for ridge in RIDGES]
        self._map = self._fitted(table, known, -max(tried)[1])

    def ranked(self, rows: torch.Tensor, most: int) -> torch.Tensor:
        """int64 ``[rows, most]``: for rows, float32 ``[rows, hidden_size]``, the likeliest tokens, best first."""
        return self._ranking.nearest(self._scaling(rows) @ self._map, most)

    def read(self, sent: Sequence[Sent]) -> Reading:
        """See ``Attack``."""
        return Reading(self.ranked(all_rows(sent), 1)[:, 0])

    def _fitted(self, table: torch.Tensor, known: Pairs, ridge: float) -> torch.Tensor:
        rows, wanted = self._scaling(known.rows), table[known.ids]
        wanted = wanted - wanted.mean(dim=0)
        spread = (rows.T @ rows).double() / len(rows) + ridge * torch.eye(rows.shape[1], dtype=torch.float64)
        fitted: torch.Tensor = torch.linalg.solve(spread, (rows.T @ wanted).double() / len(rows))
        return fitted.float()

    def _share(self, fitted: torch.Tensor, known: Pairs) -> float:
        found = self._ranking.nearest(self._scaling(known.rows) @ fitted)[:, 0]
        return float((found == known.ids).float().mean())
