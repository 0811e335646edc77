"""Moving means of step times, one for steps of about one size (Eq. 2). Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

ALPHA = 0.8
"""Weight of the past in every moving mean (the paper's alpha)."""

EDGES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, *(size << power for power in range(12) for size in (128, 192)))
"""Largest number of rows of each size of batch; larger batches count as the last."""

OUTLIER = 3.0
"""A step that took longer than this many times what was expected counts as this many times. A lasting change is
followed all the same: the mean may grow by 40 % with every step."""

SETTLED = 5
"""Observations after which a mean is trusted enough to call a step an outlier; before that it is a plain mean."""

SHORTEST_S = 1e-9
LONGEST_S = 3600.0
"""What a clock says beyond these is no step."""

MOST_WEIGHT = 8
"""A mean counts by its observations, up to this number."""

FRESH_STEPS = 16
"""A mean that was last observed as many steps ago counts an eighth, and older ones soon next to nothing: where the
cloud has become slower or faster, the sizes seen since would else be outvoted by all the others."""


@dataclass
class StepMean:
    """Steps of about one size: their mean ``rows`` and ``seconds``, how many there were, and the number of the last."""

    rows: float
    seconds: float
    step: int
    observations: int = 1

    def take(self, rows: int, seconds: float, step: int) -> None:
        """Take in one more."""
        self.step = step
        # The first steps are slow by accident (memory, kernels), never fast by accident.
        if self.observations < SETTLED and seconds * OUTLIER < self.seconds:
            self.rows, self.seconds, self.observations = rows, seconds, 1
            return
        if self.observations >= SETTLED:
            seconds = min(seconds, OUTLIER * self.seconds)
        self.observations += 1
        part = max(1 - ALPHA, 1 / self.observations)
        self.rows += part * (rows - self.rows)
        self.seconds += part * (seconds - self.seconds)

    def weight(self, now: int) -> float:
        """How much it counts at step ``now``: by its observations, and less the longer ago the last one is."""
        return float(min(self.observations, MOST_WEIGHT) * (1 + (now - self.step) / FRESH_STEPS) ** -3)


def size_class(rows: int) -> int:
    """Which of ``EDGES`` a batch belongs to."""
    return min(bisect_left(EDGES, rows), len(EDGES) - 1)


def possible(rows: int, seconds: float) -> bool:
    """Whether this can be a step."""
    return rows >= 1 and SHORTEST_S <= seconds <= LONGEST_S
