"""Rows whose tokens are known: of a public text, by who has the first layers; or of texts that the attacker knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from split_model.stack import Embedding, Span, Stack

KEPT_BACK = 5
"""Each so many-th pair is for choosing between fits."""


@dataclass(frozen=True)
class Pairs:
    """rows: float32 ``[pairs, hidden_size]``; ids: int64 ``[pairs]``, their tokens."""

    rows: torch.Tensor
    ids: torch.Tensor

    def first(self, count: int) -> Pairs:
        """The first of them."""
        return Pairs(self.rows[:count], self.ids[:count])

    def parted(self) -> tuple[Pairs, Pairs]:
        """Most of them, and the others, one at least of each where there are two."""
        back = torch.zeros(len(self.ids), dtype=torch.bool)
        back[KEPT_BACK - 1 :: KEPT_BACK] = True
        if not back.any():
            back[-1] = True
        return Pairs(self.rows[~back], self.ids[~back]), Pairs(self.rows[back], self.ids[back])


@dataclass(frozen=True)
class Scaling:
    """Takes a mean off rows and brings each of their numbers to a variance of 1: single numbers of hidden states are
    hundreds of times as large as all others."""

    mean: torch.Tensor
    scale: torch.Tensor

    @classmethod
    def of(cls, rows: torch.Tensor) -> Scaling:
        """That of ``rows``, float32 ``[rows, hidden_size]``, one at least."""
        spread = rows.std(dim=0, correction=0)
        return cls(rows.mean(dim=0), 1 / torch.where(spread > 0, spread, torch.ones_like(spread)))

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return (rows - self.mean) * self.scale


def rows_of(embedding: Embedding, front: Stack, ids: Sequence[int]) -> torch.Tensor:
    """What a device with these first layers sends for a text: ``[len(ids), hidden_size]`` of the wire's dtype."""
    rows = embedding.forward(list(ids))
    return front.forward(rows, [Span(front.new_cache(len(ids)), len(ids))])


def known_pairs(
    embedding: Embedding,
    front: Stack,
    passages: Sequence[Sequence[int]],
    skipped: int,
    most: int,
    told: Callable[[int], None] = lambda count: None,
) -> Pairs:
    """The pairs of passages, at most ``most`` of them, without the first ``skipped`` of each passage: what begins every
    text is no secret. told: called with the pairs that have come.

    Raises ``ValueError`` where there are fewer than two.
    """
    rows: list[torch.Tensor] = []
    ids: list[int] = []
    for passage in passages:
        if len(ids) >= most:
            break
        rows.append(rows_of(embedding, front, passage)[skipped:].float())
        ids += passage[skipped:]
        told(len(passage) - skipped)
    if len(ids) < 2:
        raise ValueError("there is too little text to learn from")
    return Pairs(torch.cat(rows), torch.tensor(ids)).first(most)


def table_of(embedding: Embedding, vocabulary: int) -> torch.Tensor:
    """float32 ``[vocabulary, hidden_size]``: the rows of all tokens as they enter layer 0."""
    return embedding.forward(torch.arange(vocabulary)).float()
