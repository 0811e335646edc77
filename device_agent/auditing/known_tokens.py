"""The attacker without weights: he has some rows of which he knows the tokens, and nothing of the model. Pure.

Each token that he has seen is a cloud of rows around its mean, all clouds of one shape (linear discriminant analysis).
A token that is in none of his pairs he never guesses.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from device_agent.auditing.attack import Reading, Sent, all_rows
from device_agent.auditing.known import Pairs, Scaling

SHRINKS = (1e-3, 1e-2, 1e-1, 1.0)
"""Of which the one is taken that does best on a fifth of the pairs: what is added to each direction's variance within
the clouds, all directions together having 1."""


class KnownTokens:
    """Trained on ``known``, two pairs at least."""

    def __init__(self, known: Pairs) -> None:
        self.name = f"black box, {len(known.ids):,} pairs"
        self._scaling = Scaling.of(known.rows)
        learned, kept_back = known.parted()
        tried = []
        for shrink in SHRINKS:
            self._fit(learned, shrink)
            right = (self._guesses(kept_back.rows) == kept_back.ids).float().mean()
            tried.append((float(right), shrink))
        self._fit(known, max(tried)[1])

    def read(self, sent: Sequence[Sent]) -> Reading:
        """See ``Attack``."""
        return Reading(self._guesses(all_rows(sent)))

    def _guesses(self, rows: torch.Tensor) -> torch.Tensor:
        best = (self._scaling(rows) @ self._weights + self._offsets).argmax(dim=1)
        guesses: torch.Tensor = self._tokens[best]
        return guesses

    def _fit(self, known: Pairs, shrink: float) -> None:
        rows = self._scaling(known.rows)
        self._tokens, which = torch.unique(known.ids, return_inverse=True)
        counts = torch.bincount(which, minlength=len(self._tokens)).float()
        means = rows.new_zeros((len(self._tokens), rows.shape[1])).index_add_(0, which, rows) / counts[:, None]
        within = rows - means[which]
        spread = (within.T @ within).double() / len(rows) + shrink * torch.eye(rows.shape[1], dtype=torch.float64)
        self._weights = torch.linalg.solve(spread, means.T.double()).float()
        self._offsets = (counts / len(rows)).log() - (means * self._weights.T).sum(dim=1) / 2
