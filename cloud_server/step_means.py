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

MOST_WEIGHT = 8.0
"""A mean counts by its observations, up to this number."""


@dataclass
class StepMean:
    """Steps of about one size.

    Attributes:
        rows: of the batch; ``pairs``, ``reads``: see ``step_cost``; ``seconds``: of the step.
        observations: how many there were, those of long ago counted in part.
        step: the number of the last.
    """

    rows: float
    seconds: float
    step: int
    pairs: float = 0.0
    reads: float = 0.0
    observations: float = 1.0

    def take(
        self, rows: int, seconds: float, step: int, pairs: float = 0.0, reads: float = 0.0, kept: float = 1.0
    ) -> None:
        """Take in one more; ``kept``: the part of what was observed before that still counts."""
        self.step = step
        self.observations *= kept
        # The first steps are slow by accident (memory, kernels), never fast by accident.
        if self.observations < SETTLED and seconds * OUTLIER < self.seconds:
            self.rows, self.pairs, self.reads, self.seconds, self.observations = rows, pairs, reads, seconds, 1.0
            return
        if self.observations >= SETTLED:
            seconds = min(seconds, OUTLIER * self.seconds)
        self.observations += 1
        part = max(1 - ALPHA, 1 / self.observations)
        self.rows += part * (rows - self.rows)
        self.pairs += part * (pairs - self.pairs)
        self.reads += part * (reads - self.reads)
        self.seconds += part * (seconds - self.seconds)

    def weight(self, now: int, fresh_steps: float, power: float) -> float:
        """How much it counts at step ``now``: by its observations, and less the longer ago the last one is."""
        return min(self.observations, MOST_WEIGHT) * faded(now - self.step, fresh_steps, power)


def faded(steps: int, fresh_steps: float, power: float) -> float:
    """The part that is left of what was observed ``steps`` steps ago."""
    return float((1 + steps / fresh_steps) ** -power)


def size_class(rows: int) -> int:
    """Which of ``EDGES`` a batch belongs to."""
    return min(bisect_left(EDGES, rows), len(EDGES) - 1)


def possible(rows: int, seconds: float) -> bool:
    """Whether this can be a step."""
    return rows >= 1 and SHORTEST_S <= seconds <= LONGEST_S
