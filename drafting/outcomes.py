"""How the verification under way may end, most probable outcomes first: where to draft on while waiting. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Outcome:
    """Exactly ``accepted`` drafted tokens stay and ``token`` follows them, with this probability."""

    accepted: int
    token: int
    probability: float


def outcomes(
    chances: Sequence[float],
    alternatives: Sequence[Sequence[tuple[int, float]]],
    most: int,
    kind: Literal["last", "all"],
) -> list[Outcome]:
    """At most ``most`` outcomes of the verification of a draft, most probable first.

    Args:
        chances: of each drafted token's acceptance, given that those before it are accepted.
        alternatives: for each count of accepted tokens, 0 to all, what may follow: tokens with weights from 0 to 1,
            where the draft goes on without the drafted token itself.
        kind: ``all``, or ``last``: HAT's, whose only outcomes are that the last drafted token is replaced, and that all
            stay.
    """
    assert len(alternatives) == len(chances) + 1
    first = max(len(chances) - 1, 0) if kind == "last" else 0
    found: list[Outcome] = []
    for accepted in range(first, len(chances) + 1):
        reached = math.prod(chances[:accepted])
        # Weights are shares of all that may follow; not to be drafted leaves them what the drafted token does not get.
        left = 1 - chances[accepted] if accepted < len(chances) else 1.0
        total = max(left, sum(weight for _, weight in alternatives[accepted]))
        found += [
            Outcome(accepted, token, reached * left * weight / total)
            for token, weight in alternatives[accepted]
            if weight > 0 and left > 0
        ]
    return sorted(found, key=lambda each: -each.probability)[:most]
