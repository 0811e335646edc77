"""What a drafter's confidence is worth: from a candidate's weight to its chance of being accepted, learned. Pure.

The chance is that of a token whose predecessors are all accepted. So only nodes that were really judged count: the
accepted ones and the first that was not.
"""

from __future__ import annotations

import math
from collections.abc import Callable

BINS = 10
"""Equal parts of the weights from 0 to 1."""

PRIOR = 4.0
"""Verdicts that the prior is worth."""

MEMORY = 0.995
"""Weight of the past at each verdict on this kind of candidate: 200 count, and a bin that nobody asks forgets."""


class _Kind:
    """One source, greedy or sampled: how many were judged and accepted in each bin, the latest counting most."""

    def __init__(self, prior: Callable[[float], float]) -> None:
        self.judged = [0.0] * BINS
        self.accepted = [0.0] * BINS
        self._priors = [prior((index + 0.5) / BINS) for index in range(BINS)]
        self.chances = list(self._priors)

    def seen(self, weight: float, accepted: bool) -> None:
        self.judged = [MEMORY * each for each in self.judged]
        self.accepted = [MEMORY * each for each in self.accepted]
        index = _bin(weight)
        self.judged[index] += 1
        self.accepted[index] += accepted
        self.chances = _monotone(
            [
                (accepted + PRIOR * prior) / (judged + PRIOR)
                for prior, judged, accepted in zip(self._priors, self.judged, self.accepted, strict=True)
            ],
            [judged + PRIOR for judged in self.judged],
        )


def usual_chance(source: str, weight: float) -> float:
    """What a weight is worth before any verdict, 0 to 1.

    A lookup's weights are shares of what came true. A network's probability for its likeliest token is modest: on the
    demo model's drafters 0.15 was right in 0.3 of the cases, 0.35 in 0.57, 0.55 in 0.78, about its root each time.
    """
    return weight if source == "lookup" else math.sqrt(weight)


class Calibration:
    """Chances of acceptance by source, greedy or sampled, and weight.

    Args:
        prior: the chance of a source's weight before any verdict, never falling where the weight rises.
    """

    def __init__(self, prior: Callable[[str, float], float] = lambda source, weight: weight) -> None:
        self._prior = prior
        self._kinds: dict[tuple[str, bool], _Kind] = {}

    def chance(self, source: str, sampled: bool, weight: float) -> float:
        """The chance, 0 to 1, never falling where the weight rises.

        Args:
            source: the drafter.
            sampled: whether the answer is, or greedy.
            weight: the drafter's, 0 to 1.
        """
        kind = self._kinds.get((source, sampled))
        if kind is None:
            return self._prior(source, min(max(weight, 0.0), 1.0))
        # Straight lines between the middles of the bins, level outside them.
        place = min(max(weight, 0.0), 1.0) * BINS - 0.5
        below = min(max(int(place), 0), BINS - 2)
        share = min(max(place - below, 0.0), 1.0)
        return kind.chances[below] + share * (kind.chances[below + 1] - kind.chances[below])

    def seen(self, source: str, sampled: bool, weight: float, accepted: bool) -> None:
        """A verdict on a candidate whose predecessors were all accepted."""
        if (source, sampled) not in self._kinds:
            self._kinds[source, sampled] = _Kind(lambda weight: self._prior(source, weight))
        self._kinds[source, sampled].seen(weight, accepted)


def _bin(weight: float) -> int:
    return min(max(int(weight * BINS), 0), BINS - 1)


def _monotone(values: list[float], counts: list[float]) -> list[float]:
    """The closest values that never fall, by pooling neighbours that do."""
    pools: list[tuple[float, float, int]] = []  # mean, count, how many values
    for value, count in zip(values, counts, strict=True):
        size = 1
        while pools and pools[-1][0] > value:
            before, weight, many = pools.pop()
            value = (before * weight + value * count) / (weight + count)
            count, size = count + weight, size + many
        pools.append((value, count, size))
    return [mean for mean, _, size in pools for _ in range(size)]
