"""Which documents make up which step: the same for the same seed, wherever training begins."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drafting.distill.features import FeatureFiles
from drafting.distill.trainable import Rows

POOL = 512
"""Documents among which those of like length are put together; more would make each step less of a mixture."""

FORGET = 0.5
"""How often the deep rows of an earlier answer are withheld: a conversation taken up again does not have them."""


@dataclass(frozen=True)
class TrainingBatch:
    """Rows of several documents, and for each token whether the model is to say it."""

    rows: Rows
    own: Tensor  # bool [texts, width]
    ids: Tensor  # int64 [texts, width]


def planned(lengths: Sequence[int], most_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Groups of documents, each at most `most_tokens` positions with its filling, or one document."""
    chance = random.Random(f"{seed}-{epoch}")
    order = list(range(len(lengths)))
    chance.shuffle(order)
    groups: list[list[int]] = []
    for first in range(0, len(order), POOL):
        group: list[int] = []
        for number in sorted(order[first : first + POOL], key=lambda each: lengths[each]):
            if group and lengths[number] * (len(group) + 1) > most_tokens:
                groups.append(group)
                group = []
            group.append(number)
        if group:
            groups.append(group)
    chance.shuffle(groups)
    return groups


def assembled(
    files: FeatureFiles, group: Sequence[int], chance: random.Random | None, unit: float = 1.0
) -> TrainingBatch:
    """The batch of a group, its shallow rows divided by `unit`.

    With `chance`, deep rows of earlier answers are sometimes withheld; without, never.
    """
    width = max(files.lengths[number] for number in group)
    shape = (len(group), width)
    shallow, deep = (torch.zeros((*shape, files.hidden_size)) for _ in range(2))
    own = torch.zeros(shape, dtype=torch.bool)
    known = torch.zeros(shape, dtype=torch.bool)
    ids = torch.zeros(shape, dtype=torch.int64)
    for lane, number in enumerate(group):
        one = files[number]
        length = len(one.ids)
        ids[lane, :length] = one.ids
        shallow[lane, :length], deep[lane, :length] = one.shallow, one.deep
        own[lane, :length] = known[lane, :length] = one.own
        if chance is not None:
            for start, end in _answers(one.own.tolist())[:-1]:
                if chance.random() < FORGET:
                    own[lane, start:end] = known[lane, start:end] = False
    return TrainingBatch(Rows(shallow / unit, deep, known), own, ids)


def _answers(own: Sequence[bool]) -> list[tuple[int, int]]:
    """Where each run of own tokens begins and ends."""
    edges = [at for at in range(len(own) + 1) if (at < len(own) and own[at]) != (at > 0 and own[at - 1])]
    return list(zip(edges[::2], edges[1::2], strict=True))


def places(own: Tensor, depth: int) -> Tensor:
    """Bool [texts, width]: positions whose next token is own, at `depth` rows behind their root (0: they are it).

    Rows behind the root are drafted, so they too are own tokens.
    """
    found = torch.zeros_like(own)
    width = own.shape[1]
    if width <= depth + 1:
        return found
    # Of a place p, the tokens p + 1 - depth to p + 1.
    windows = own[:, 1:].unfold(1, depth + 1, 1).all(-1)
    found[:, depth : width - 1] = windows
    return found
