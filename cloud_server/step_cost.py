"""What a step costs by its rows and by what they attend to: one plane through all step times. Pure.

A *pair* is a row and a position that it attends to. Those of spans of more than ``SHORT_ROWS`` rows are counted apart
from those of short ones, the *reads*: a chunk's rows share the keys and values that they read, a decode row has them
for itself. Where slack cuts a chunk into short portions, those are reads too. Windows are not known here: beyond one,
pairs count that are none.

The paper's g is a mean for each size of batch (see ``monitor``). For looking at a single step that is right; a search
for the best of many sizes finds the size whose mean is low by accident, and takes chunks far into a long prompt, which
are seen at certain sizes only, for sizes that are dear. A plane has no such corners, and few numbers are known soon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from cloud_server.step_means import StepMean, faded, possible, size_class

FRESH_STEPS = 256.0
FADING = 3.0
"""A mean that was last observed as many steps ago as the first number counts an eighth, the second being the power."""

PRIOR_WEIGHT = 0.1
PRIOR_ROWS = (1, 64, 512)
"""The prior stands in for what was never seen: as so many observations of a prompt's first rows at each of these sizes,
before the first step."""


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step: ``base_s``, ``row_s`` for each row, ``pair_s`` for each pair of a chunk, ``read_s`` for each
    of short work."""

    base_s: float
    row_s: float
    pair_s: float = 0.0
    read_s: float = 0.0

    def __post_init__(self) -> None:
        assert self.base_s > 0 and self.row_s >= 0 and self.pair_s >= 0 and self.read_s >= 0

    def __call__(self, rows: float) -> float:
        """Seconds of a step of ``rows`` rows, without what they attend to."""
        return self.base_s + self.row_s * rows

    def beside(self, reads: float) -> StepCost:
        """The cost of a step that has so many reads of others anyway: they count as its base."""
        return replace(self, base_s=self.base_s + self.read_s * reads)


class StepCosts:
    """Learns ``StepCost``; before the first observation it is the prior."""

    def __init__(self, prior: StepCost) -> None:
        self._prior = prior
        self._means: dict[tuple[int, int], StepMean] = {}
        self._steps = 0
        self._now: StepCost | None = prior

    def observe(self, rows: int, seconds: float, pairs: float, reads: float) -> None:
        """Take in a step of ``rows`` rows with so many pairs of chunks and of short work. A time that cannot be one is
        ignored."""
        if not possible(rows, seconds):
            return
        self._steps += 1
        self._now = None
        bucket = size_class(rows), int(pairs / rows).bit_length()
        mean = self._means.get(bucket)
        if mean is None:
            self._means[bucket] = StepMean(rows, seconds, self._steps, pairs, reads)
        else:
            kept = faded(self._steps - mean.step, FRESH_STEPS, FADING)
            mean.take(rows, seconds, self._steps, pairs, reads, kept)

    @property
    def now(self) -> StepCost:
        """As it is known now."""
        if self._now is None:
            self._now = self._fit()
        return self._now

    def _fit(self) -> StepCost:
        """Least squares of the relative errors, with no cost below zero."""
        means = list(self._means.values())
        weights = [mean.weight(self._steps, FRESH_STEPS, FADING) for mean in means]
        scale = sum(
            weight * mean.seconds / self._prior(mean.rows) for weight, mean in zip(weights, means, strict=True)
        ) / sum(weights)
        points = [(mean.rows, mean.pairs, mean.reads, mean.seconds) for mean in means]
        points += [(rows, rows**2 / 2, 0.0, scale * self._prior(rows)) for rows in PRIOR_ROWS]
        weights += [PRIOR_WEIGHT * faded(self._steps, FRESH_STEPS, FADING)] * len(PRIOR_ROWS)
        rows, pairs, reads, seconds = np.array(points).T
        # Less than one is none; a mean that only fades towards zero would be divided by.
        pairs, reads = (np.where(each < 1, 0.0, each) for each in (pairs, reads))
        parts = np.sqrt(np.array(weights))
        features = np.stack([np.ones_like(rows), rows, pairs, reads], axis=1) * (parts / seconds)[:, None]
        several = [(0, *others) for count in range(4) for others in combinations((1, 2, 3), count)]
        return min((_solved(features, parts, chosen) for chosen in several), key=lambda found: found[0])[1]


def _solved(features: np.ndarray, target: np.ndarray, chosen: Sequence[int]) -> tuple[float, StepCost]:
    """The error and the cost where only the ``chosen`` of its four numbers may differ from zero; an infinite error
    where that gives no cost: a base that is not above zero, or another number below."""
    used = features[:, chosen]
    sizes = np.abs(used).max(axis=0)
    sizes[sizes == 0] = 1.0
    found = np.linalg.lstsq(used / sizes, target, rcond=None)[0] / sizes
    numbers = [0.0, 0.0, 0.0, 0.0]
    for index, number in zip(chosen, found, strict=True):
        numbers[index] = float(number)
    if numbers[0] <= 0 or min(numbers) < 0:
        return float("inf"), StepCost(1.0, 0.0)
    return float(np.square(used @ found - target).sum()), StepCost(*numbers)
