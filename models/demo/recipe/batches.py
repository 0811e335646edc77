"""Conversations packed into rows of equal length, none of them cut in two."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from .corpus import training_stream
from .tokenizer import PAD, encode_chat, special

USER_WEIGHT = 0.1
"""Loss weight of a token that the model reads but need not say; its facts are drawn by chance."""

WAITING = 48
"""How many encoded conversations wait for a row that they fill well."""


@dataclass
class Batch:
    """Token rows, and the chosen positions that carry loss with their targets and weights."""

    rows: torch.Tensor
    places: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor


Encoded = tuple[list[int], list[bool]]


def encoded_stream(
    tokenizer: Tokenizer, seed: int, rank: int, workers: int, start: int, longest: int
) -> Iterator[Encoded]:
    """Encoded conversations of one worker: every ``workers``-th sample from ``start`` on."""
    for number, sample in enumerate(training_stream(seed, start)):
        if number % workers == rank:
            ids, own = encode_chat(tokenizer, sample.messages)
            if len(ids) <= longest:
                yield ids, own


def packed(stream: Iterator[Encoded], length: int, pad: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows filled by whole conversations, the longest that fits first; the second array marks own tokens with 1,
    read tokens with 0 and padding with -1."""
    waiting = [next(stream) for _ in range(WAITING)]
    while True:
        ids = np.full(length, pad, dtype=np.int64)
        kind = np.full(length, -1, dtype=np.int64)
        used = 0
        # The first is taken in order of arrival, so that long conversations do not come before all others.
        spot = 0
        while spot >= 0:
            tokens, own = waiting[spot]
            waiting[spot] = next(stream)
            ids[used : used + len(tokens)] = tokens
            kind[used : used + len(tokens)] = own
            used += len(tokens)
            fitting = [(len(one[0]), place) for place, one in enumerate(waiting) if len(one[0]) <= length - used]
            spot = max(fitting)[1] if fitting else -1
        yield ids, kind


def batches(
    tokenizer: Tokenizer, seed: int, rank: int, workers: int, start: int, rows: int, length: int, share: float = 0.55
) -> Iterator[Batch]:
    """Batches without end; ``share`` of the positions carry loss, which keeps the shapes fixed for the compiler."""
    pad = special(tokenizer, PAD)
    rng = np.random.default_rng(random.Random(f"{seed}-{rank}-{start}").randrange(2**32))
    source = packed(encoded_stream(tokenizer, seed, rank, workers, start, length + 1), length + 1, pad)
    chosen = int(rows * length * share)
    while True:
        pairs = [next(source) for _ in range(rows)]
        ids, kind = np.stack([one[0] for one in pairs]), np.stack([one[1] for one in pairs])
        flat = kind[:, 1:].reshape(-1)
        # Own tokens first, then read ones, padding last; chance decides among equals.
        order = np.argsort(-flat + rng.random(flat.size) * 0.5, kind="stable")[:chosen]
        picked = flat[order]
        weights = np.where(picked == 1, 1.0, np.where(picked == 0, USER_WEIGHT, 0.0))
        yield Batch(
            torch.from_numpy(np.ascontiguousarray(ids[:, :-1])),
            torch.from_numpy(order),
            torch.from_numpy(ids[:, 1:].reshape(-1)[order]),
            torch.from_numpy((weights / weights.sum()).astype(np.float32)),
        )
