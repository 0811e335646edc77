"""The simplest attack: each row is taken for the token whose embedding it is most like. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from device_agent.auditing.attack import Reading, Sent, all_rows
from device_agent.auditing.known import Pairs
from device_agent.auditing.ranking import Ranking


class NearestEmbedding:
    """By cosine, once what all rows have in common is taken off them, and the same off the embeddings.

    Args:
        table: float32 ``[vocabulary, hidden_size]``, the rows of each token as they enter layer 0.
        known: whose mean is taken off: that of the rows, and that of the same tokens' embeddings.
    """

    name = "nearest embedding"

    def __init__(self, table: torch.Tensor, known: Pairs) -> None:
        self._row_mean = known.rows.mean(dim=0)
        self._ranking = Ranking(table, table[known.ids].mean(dim=0))

    def read(self, sent: Sequence[Sent]) -> Reading:
        """See ``Attack``."""
        return Reading(self._ranking.nearest(all_rows(sent) - self._row_mean)[:, 0])
