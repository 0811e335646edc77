"""How long the parts of a model take here, by repeating them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import mean, median
from time import perf_counter
from typing import Final

LEAST: Final = 5
"""Repeats, where they do not take long."""

MOST: Final = 60

LONG_S: Final = 0.4
"""What takes so long is done twice, and no further sizes are measured."""

SHORT_S: Final = 0.002
"""What takes less is over before the system takes the CPU away, but for a few times that a median knows nothing of."""

Run = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Timed:
    """What one part takes.

    Attributes:
        seconds: the median of its repeats where it is short, else their mean.
    """

    seconds: float

    @property
    def short(self) -> bool:
        """Whether the system's pauses have to be added, see `Stopwatch.pauses`."""
        return self.seconds < SHORT_S


class Stopwatch:
    """Repeats parts, one behind the other as in a step.

    A device that may use a part of a CPU only, or shares it, stands still now and then. How much of its time that is,
    shows over everything that is measured, not in the few repeats of one part.

    Args:
        spend_s: seconds for the repeats of parts that run together.
        clock: of the seconds that are found; by a thread's CPU time pauses are not in them.
        done: waits until what was begun is computed, where that goes on by itself.
    """

    def __init__(self, spend_s: float, clock: Clock = perf_counter, done: Run = lambda: None) -> None:
        self._spend_s, self._clock, self._done = spend_s, clock, done
        self._typical = self._taken = 0.0

    @property
    def pauses(self) -> float:
        """How many times as long as its median says a short part took in the mean; 1 or more."""
        return max(1.0, self._taken / self._typical) if self._typical else 1.0

    def timed(self, copies: Sequence[Mapping[str, Run]], between: Run | None = None) -> dict[str, Timed]:
        """What each part takes.

        copies: the same parts with weights of their own, used by turns: where a step reads more weights than the CPU's
            caches hold, none are there when a layer's turn comes.
        between: what runs before each turn and does not count.
        """
        found: dict[str, list[float]] = {part: [] for part in copies[0]}
        begun = perf_counter()
        for turn, parts in enumerate(cycle(copies)):
            if between is not None:
                between()
                self._done()
            times = {part: self._seconds(run) for part, run in parts.items()}
            long = max(times.values()) >= LONG_S
            if turn or long:  # The first one's kernels are still being chosen.
                for part, seconds in times.items():
                    found[part].append(seconds)
            enough = perf_counter() - begun >= self._spend_s or turn >= max(MOST, len(copies))
            if turn >= (1 if long else LEAST) and enough:
                break
        return {part: self._judged(times) for part, times in found.items()}

    def _judged(self, times: list[float]) -> Timed:
        typical = Timed(median(times))
        if not typical.short:
            return Timed(mean(times))
        self._typical += len(times) * typical.seconds
        self._taken += sum(times)
        return typical

    def _seconds(self, run: Run) -> float:
        begun = self._clock()
        run()
        self._done()
        return self._clock() - begun
