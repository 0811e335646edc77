"""Acceptance of a drafter on texts that it has not seen, worked out for all positions at once.

The text is the model's own greedy answer. As long as drafted tokens are accepted they are that text, so the rows that a
draft of any depth would be made from are known: every position can be a root, and its draft is accepted as far as each
depth's likeliest token is the text's next. The rows are float32 and not from the cache, as when the drafter drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from drafting.distill.batches import TrainingBatch, places
from drafting.distill.features import groups_of, parts, states
from drafting.distill.losses import overlap
from drafting.distill.network import Drafter, FrozenHead, Medusa
from drafting.distill.text import Document
from drafting.distill.trainable import Rows, later
from split_model.reference import Reference

CAP = 6
DEEPEST = 8


@dataclass
class Acceptance:
    """Counts that add up.

    Attributes:
        tokens, rounds: chosen tokens behind the first, and the verifications they took with chains of `CAP` tokens.
        tried, accepted: by depth, over all roots: drafted tokens whose draft was right before them, and of these those
            that were right themselves.
        overlap: by depth, sum of the overlaps of the two distributions at T = 1, over `judged` places.
    """

    tokens: int = 0
    rounds: int = 0
    tried: list[int] = field(default_factory=lambda: [0] * DEEPEST)
    accepted: list[int] = field(default_factory=lambda: [0] * DEEPEST)
    overlap: list[float] = field(default_factory=lambda: [0.0] * DEEPEST)
    judged: list[int] = field(default_factory=lambda: [0] * DEEPEST)

    @property
    def tau(self) -> float:
        """Tokens a verification, its own included; 1 without drafts."""
        return self.tokens / self.rounds if self.rounds else 1.0

    @property
    def by_depth(self) -> list[float]:
        """Share of drafted tokens accepted at each depth, of those whose predecessors were."""
        return [right / all_ for right, all_ in zip(self.accepted, self.tried, strict=True) if all_]

    @property
    def overlap_by_depth(self) -> list[float]:
        """Mean chance that a token drawn from the drafter is accepted at T = 1."""
        return [each / all_ for each, all_ in zip(self.overlap, self.judged, strict=True) if all_]

    def add(self, other: Acceptance) -> None:
        """Count another's in."""
        self.tokens += other.tokens
        self.rounds += other.rounds
        for mine, its in ((self.tried, other.tried), (self.accepted, other.accepted), (self.judged, other.judged)):
            mine[:] = [a + b for a, b in zip(mine, its, strict=True)]
        self.overlap[:] = [a + b for a, b in zip(self.overlap, other.overlap, strict=True)]


def held_out(model: Reference, split: int, documents: Sequence[Document]) -> Iterator[tuple[list[int], TrainingBatch]]:
    """Batches of documents with their numbers. Only the last answer of each is own."""
    front, rest = parts(model, split)
    for group in groups_of(documents):
        texts = [documents[number].ids for number in group]
        shallow, deep = states(model, front, rest, texts)
        own = torch.zeros(shallow.shape[:2], dtype=torch.bool)
        ids = torch.zeros(own.shape, dtype=torch.int64)
        for lane, number in enumerate(group):
            own[lane, documents[number].prompt : len(texts[lane])] = True
            ids[lane, : len(texts[lane])] = torch.from_numpy(texts[lane])
        rows = Rows(shallow.float().clone(), deep.float().clone(), own)
        yield group, TrainingBatch(rows, own, ids)


@torch.no_grad()
def measured(network: Drafter, head: FrozenHead, batch: TrainingBatch) -> list[Acceptance]:
    """What would be accepted of the drafts from every position of each document."""
    right: list[Tensor] = []
    found = [Acceptance() for _ in batch.ids]
    at_first = places(batch.own, 0)
    p = head.logits(head.normed(batch.rows.deep[at_first])).softmax(-1)
    texts = at_first.nonzero()[:, 0]
    for depth, logits in enumerate(_logits(network, head, batch)):
        here = places(batch.own, depth)
        log_q = logits(here).log_softmax(-1)
        hits = torch.zeros_like(here)
        hits[here] = log_q.argmax(-1) == batch.ids[:, 1:][here[:, :-1]]
        right.append(hits)
        chosen = here[at_first]
        shared = torch.zeros(len(found)).index_add_(0, texts[chosen], overlap(log_q, p[chosen]))
        for one, each, count in zip(found, shared.tolist(), here.sum(1).tolist(), strict=True):
            one.overlap[depth] += each
            one.judged[depth] += count
    count_rounds(right, batch.own, found)
    return found


def _logits(network: Drafter, head: FrozenHead, batch: TrainingBatch) -> Iterator[Callable[[Tensor], Tensor]]:
    """For each depth, the drafter's logits at chosen places."""
    if isinstance(network, Medusa):
        normed = head.normed(batch.rows.deep)
        for number, medusa in enumerate(network.heads):
            yield partial(_at, medusa, later(normed, number + 1))
    else:
        for out in network.drafted(batch.rows, DEEPEST):
            yield partial(_at, lambda rows: head.logits(head.normed(rows)), out)


def _at(logits: Callable[[Tensor], Tensor], rows: Tensor, here: Tensor) -> Tensor:
    return logits(rows[here])


def count_rounds(right: Sequence[Tensor], own: Tensor, found: Sequence[Acceptance]) -> None:
    """Counts what is accepted.

    right: for each depth bool [texts, width], at `p` whether the token drafted there, that far behind its root, is the
    text's at `p + 1`. The last run of own tokens in each text is the answer.
    """
    for lane, one in enumerate(found):
        at = own[lane].nonzero()[:, 0].tolist()
        if not at:
            continue
        end = at[-1] + 1
        start = end
        while start and bool(own[lane, start - 1]):
            start -= 1
        hits = [each[lane].tolist() for each in right]
        accepted: dict[int, int] = {}
        for root in range(start, end - 1):
            depth = 0
            while depth < len(hits) and root + depth + 1 < end:
                one.tried[depth] += 1
                if not hits[depth][root + depth]:
                    break
                one.accepted[depth] += 1
                depth += 1
            accepted[root] = depth
        root = start
        while root < end - 1:
            one.rounds += 1
            root += min(accepted[root], CAP) + 1
        one.tokens += end - 1 - start


def total(found: Sequence[Acceptance]) -> Acceptance:
    """All together."""
    every = Acceptance()
    for one in found:
        every.add(one)
    return every
