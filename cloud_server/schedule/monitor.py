"""What the cloud knows of its load and of what a step costs: HAT's state monitor (Eq. 1 and 2). Pure.

Eq. 2 keeps a moving mean of the step time for each size of batch. Sizes near each other share a mean here, and the
means become one curve that never falls, because more rows cannot take less time: what a mean lacks in observations it
gets from its neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

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

BASE_S = 0.02
ROW_S = 0.00013
"""Prior: a step of a 7B model in fp16 on one data-centre GPU, and each of its rows, in seconds."""

FAR_ROWS = 32
"""Means nearer than this say nothing of the cost of a row: noise between them would be extrapolated a thousandfold."""


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
        """Return how much it counts at step ``now``: by its observations, and less the longer ago the last one is."""
        return float(min(self.observations, MOST_WEIGHT) * (1 + (now - self.step) / FRESH_STEPS) ** -3)


class StepTimes:
    """The paper's g: seconds of a step by its rows. Positive, never falling, defined for any number of rows.

    Before the first observation it is the prior. With observations it runs straight between the means; below the first
    it has the prior's shape, beyond the last the slope of the means.
    """

    def __init__(self) -> None:
        self._means: dict[int, StepMean] = {}
        self._steps = 0
        self._rows: list[float] = []
        self._seconds: list[float] = []
        self._slope = ROW_S
        self._fitted = True

    def observe(self, rows: int, seconds: float) -> None:
        """Take in a step of ``rows`` rows (Eq. 2). A time that cannot be one is ignored."""
        if not _possible(rows, seconds):
            return
        self._steps += 1
        self._fitted = False
        mean = self._means.get(_size_class(rows))
        if mean is None:
            self._means[_size_class(rows)] = StepMean(rows, seconds, self._steps)
        else:
            mean.take(rows, seconds, self._steps)

    def __call__(self, rows: float) -> float:
        """Return the seconds that a step of ``rows`` rows is expected to take."""
        if not self._fitted:
            self._fit()
        xs, ys = self._rows, self._seconds
        if not xs:
            return _prior(rows)
        if rows >= xs[-1]:
            return ys[-1] + self._slope * (rows - xs[-1])
        if rows <= xs[0]:
            return ys[0] * _prior(rows) / _prior(xs[0])
        right = bisect_right(xs, rows)
        left = right - 1
        return ys[left] + (ys[right] - ys[left]) * ((rows - xs[left]) / (xs[right] - xs[left]))

    def _fit(self) -> None:
        """Pool adjacent violators: neighbours that fall become their weighted mean, until nothing falls."""
        means = [self._means[bucket] for bucket in sorted(self._means)]
        pools: list[tuple[float, float, int]] = []  # seconds, weight, means in it
        for mean in means:
            weight = mean.weight(self._steps)
            seconds, count = mean.seconds, 1
            while pools and pools[-1][0] > seconds:
                before_s, before, members = pools.pop()
                seconds = (before_s * before + seconds * weight) / (before + weight)
                weight, count = before + weight, count + members
            pools.append((seconds, weight, count))
        self._rows = [mean.rows for mean in means]
        self._seconds = [seconds for seconds, _, count in pools for _ in range(count)]
        self._slope = self._slope_beyond()
        self._fitted = True

    def _slope_beyond(self) -> float:
        """Seconds a row costs beyond the last mean: what it cost over at least the upper half of what is known."""
        last, last_s = self._rows[-1], self._seconds[-1]
        other = max(bisect_right(self._rows, last / 2) - 1, 0)
        if last - self._rows[other] < FAR_ROWS:
            return ROW_S * last_s / _prior(last)
        return (last_s - self._seconds[other]) / (last - self._rows[other])


@dataclass
class LoadMonitor:
    """The load of the cloud: moving means of a step's rows (mu, Eq. 1) and seconds (eta), 0 until the first step, and
    what a step takes (g, Eq. 2)."""

    g: StepTimes = field(default_factory=StepTimes)
    mu: float = 0.0
    eta: float = 0.0
    _observed: bool = field(default=False, repr=False)

    def observe(self, rows: int, seconds: float) -> None:
        """Take in one step of ``rows`` rows. A time that cannot be one is ignored."""
        if not _possible(rows, seconds):
            return
        self.g.observe(rows, seconds)
        past = ALPHA if self._observed else 0.0
        self.mu = past * self.mu + (1 - past) * rows
        self.eta = past * self.eta + (1 - past) * seconds
        self._observed = True


def _prior(rows: float) -> float:
    return BASE_S + ROW_S * rows


def _size_class(rows: int) -> int:
    """Which of ``EDGES`` a batch belongs to."""
    return min(bisect_left(EDGES, rows), len(EDGES) - 1)


def _possible(rows: int, seconds: float) -> bool:
    """Whether this can be a step."""
    return rows >= 1 and SHORTEST_S <= seconds <= LONGEST_S
