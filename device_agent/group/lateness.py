"""Which member of a group is too slow to be planned with, and when it is fast enough again. Pure.

Every ``PERIOD_S`` each member says how long its own computing took. That, over what the plan expects of it, is its
*ratio*: 1 where the profile still holds. A member is *late* in a period where its ratio is more than ``FACTOR`` times
the median of the others', so that a plan that is wrong for all, or a machine that they share, makes nobody late. Who
has been late ``COUNT`` times more often than not is slow. It takes ``FAST_COUNT`` good trials in a row until it is fast
again, and twice as many each further time, so that nobody goes in and out all the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low
from typing import Final

PERIOD_S: Final = 1.0
"""Between two reports."""

FACTOR: Final = 2.0
"""How many times as slow as the others, beside what is expected of each, a member may be."""

COUNT: Final = 4
"""Late periods, less those that were not, until a member is slow: it is noticed within some seconds of steady work."""

LEAST_S: Final = 0.02
"""A period in which less computing was expected of a member says nothing: it is added to the next."""

TRIAL_EVERY_S: Final = 2.0
"""A slow member is tried so often."""

FAST_FACTOR: Final = 1.5
"""A trial is good where it is at most so many times as slow as the best; less than ``FACTOR``, so that a member that
comes back stays."""

FAST_COUNT: Final = 4
"""Good trials in a row until a member is fast again: it takes some seconds."""

MOST_DOUBLINGS: Final = 6

_LEAST_RATIO: Final = 0.05


class Lateness:
    """Of one life of a group."""

    def __init__(self) -> None:
        self._late: dict[str, int] = {}

    def period(self, ratios: Mapping[str, float]) -> str | None:
        """One period: the ratios of the members that had enough to do.

        Returns who is slow, the slowest where there are several; None: nobody.
        """
        slow: list[tuple[float, str]] = []
        for name, ratio in ratios.items():
            others = [other for each, other in ratios.items() if each != name]
            if not others:
                continue
            times = ratio / max(_LEAST_RATIO, median_low(others))
            before = self._late.get(name, 0)
            self._late[name] = before + 1 if times > FACTOR else max(0, before - 1)
            if self._late[name] >= COUNT:
                slow.append((times, name))
        return max(slow)[1] if slow else None


class Trials:
    """Of all members, for as long as the group is."""

    def __init__(self) -> None:
        self._best: dict[str, float] = {}
        self._good: dict[str, int] = {}
        self._times: dict[str, int] = {}

    def slow(self, name: str) -> None:
        """It has been found to be slow."""
        self._good[name] = 0
        self._times[name] = self._times.get(name, 0) + 1

    def tried(self, name: str, speed: float) -> bool:
        """How a trial went. Returns whether it has been fast for long enough."""
        best = self._best[name] = max(speed, self._best.get(name, 0.0))
        self._good[name] = self._good.get(name, 0) + 1 if speed * FAST_FACTOR >= best else 0
        doublings = min(MOST_DOUBLINGS, max(0, self._times.get(name, 0) - 1))
        return self._good[name] >= FAST_COUNT << doublings
