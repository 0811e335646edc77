"""EdgeFormer's LiScore of heads, as far as it is arithmetic: which rows are looked at, Eq. 14 and Eq. 15. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

LAMBDA = 0.8
"""How much a head's importance counts beside its time (the paper's choice)."""


def sampled_rows(rows: int, most: int, seed: int) -> list[int]:
    """At most `most` of `rows` rows, ascending: one drawn from each of as many equal stretches. The first row is left
    out, since it sees itself alone and tells nothing of any head."""
    count = min(most, rows - 1)
    rng = random.Random(seed)
    ends = [1 + number * (rows - 1) // count for number in range(count + 1)] if count > 0 else [1]
    return [rng.randrange(begin, end) for begin, end in pairwise(ends)]


def normalised(scores: Sequence[float]) -> list[float]:
    """Eq. 14 of one layer's raw scores: 0 for the least, 1 for the most; 1 for all where they are equal, since then
    none is worth less than another."""
    least, most = min(scores), max(scores)
    if most <= least:
        return [1.0] * len(scores)
    return [(score - least) / (most - least) for score in scores]


def composite(importance: Sequence[float], seconds: Sequence[float], share: float = LAMBDA) -> list[float]:
    """Eq. 15 with both terms between 0 and 1: share * I_b + (1 - share) * T_min / T(b).

    seconds: what the attention of each head takes where it would be computed, above 0.
    """
    fastest = min(seconds)
    return [share * each + (1 - share) * fastest / taken for each, taken in zip(importance, seconds, strict=True)]
