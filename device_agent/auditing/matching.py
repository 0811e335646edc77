"""Vocabulary matching: position by position, the first layers are asked what each token would have sent there.

What a row is depends on the tokens up to it alone. So whoever has the first layers, and has read all tokens before,
runs every candidate through them and takes the one whose row is nearest. The vocabulary is not tried as a whole: tokens
come in the order in which another attack ranks them, and the search for one position ends at a row that is the same
but for rounding, or after so many candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from device_agent.auditing.attack import UNTRIED, Reading, Sent, all_rows
from split_model.kv_cache import KVCache
from split_model.stack import Embedding, Span, Stack
from split_model.tree import TRUNK, Tree

SAME = {torch.float32: 1e-3, torch.bfloat16: 2e-2, torch.float16: 5e-3}
"""Two rows whose difference is no larger share of their length are the same: what rounding makes of them depends on how
many rows are computed together."""

FIRST_BATCH, LARGEST_BATCH = 16, 256
"""Candidates that are run together: few at first, for the right one is mostly among them."""

Ranked = Callable[[torch.Tensor, int], torch.Tensor]
"""Rows, float32 ``[rows, hidden_size]``, and how many: the likeliest tokens of each, int64 ``[rows, most]``."""


class VocabularyMatching:
    """With the embedding and the first layers.

    Args:
        ranked: in which order tokens are tried.
        most: candidates of one position.
        over: whether the time is over; what has not been looked at by then is ``UNTRIED``.
    """

    name = "vocabulary matching"

    def __init__(
        self,
        embedding: Embedding,
        front: Stack,
        ranked: Ranked,
        most: int,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._embedding, self._front, self._ranked = embedding, front, ranked
        self._most = most
        self._over = over

    def read(self, sent: Sequence[Sent]) -> Reading:
        """See ``Attack``; the tokens that it has read are what it believes to come before the next row."""
        rows = all_rows(sent)
        order = self._ranked(rows, self._most)
        cache = self._front.new_cache(max(each.position + len(each.rows) for each in sent) + LARGEST_BATCH)
        guesses = torch.full((len(rows),), UNTRIED)
        misfit = torch.full((len(rows),), float("inf"))
        number = 0
        for each in sent:
            cache.truncate(each.position)
            for _ in range(len(each.rows)):
                if self._over():
                    return Reading(guesses, misfit)
                guesses[number], misfit[number] = self._matched(cache, rows[number], order[number])
                self._run(cache, guesses[number : number + 1])
                number += 1
        return Reading(guesses, misfit)

    def _matched(self, cache: KVCache, target: torch.Tensor, order: torch.Tensor) -> tuple[int, float]:
        """The best of the candidates at the end of ``cache``, and how far its row is from ``target``."""
        best, misfit = int(order[0]), float("inf")
        length = float(target.norm()) or 1.0
        for tried in _batches(order):
            rows = self._run(cache, tried, side_by_side=True)
            distances = (rows.float() - target).norm(dim=1) / length
            nearest = int(distances.argmin())
            if float(distances[nearest]) < misfit:
                best, misfit = int(tried[nearest]), float(distances[nearest])
            if misfit <= SAME[self._front.dtype]:
                break
        return best, misfit

    def _run(self, cache: KVCache, ids: torch.Tensor, side_by_side: bool = False) -> torch.Tensor:
        """The rows of tokens that follow ``cache``; side by side each is the next one, and none of them stays."""
        branches = Tree(cache.length).add([TRUNK] * len(ids)) if side_by_side else None
        rows = self._front.forward(self._embedding.forward(ids), [Span(cache, len(ids), branches)])
        if side_by_side:
            cache.truncate(cache.length - len(ids))
        return rows


def _batches(order: torch.Tensor) -> Iterator[torch.Tensor]:
    begin, size = 0, FIRST_BATCH
    while begin < len(order):
        yield order[begin : begin + size]
        begin, size = begin + size, min(LARGEST_BATCH, 4 * size)
