"""Which member of a group is too slow to be planned with, and when it is fast enough again. Pure.

Every ``PERIOD_S`` each member says how long its own computing took, without its waits for others. What it has computed
since its last report, over what the plan expects of it, is its *ratio*: 1 where the profile still holds. A member is
*late* where its ratio is more than ``FACTOR`` times the median of the others', so that a plan that is wrong for all, or
a machine that they share, makes nobody late; where the plan has been somewhat wrong about one of them ever since it
began, it is late beside that. Slow is who has been late

- in ``COUNT`` reports more than it was not, which is what notices a slow member soon where steps are short, or
- for more than ``PAUSE_S`` in all, which notices it where a step takes so long that there are few reports: counted is
  the time beyond that from which on a report is late, and what later reports stay below it is taken off.

So a member that pauses once for ``PAUSE_S``, or is slow for as long, stays, however slow it was meanwhile; one that is
four times as slow from some moment on is named after six seconds of its own computing, and a second or two until its
reports are there. It takes ``FAST_COUNT`` good trials in a row until it is fast again, and twice as many each further
time, so that nobody goes in and out all the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Final

PERIOD_S: Final = 1.0
"""Between two reports."""

FACTOR: Final = 2.0
"""How many times as slow as the others, beside what is expected of each, a member may be."""

COUNT: Final = 5
"""Late reports, less those that were not, until a member is slow. What lasts ``PAUSE_S`` is in four at most."""

PAUSE_S: Final = 3.0
"""So much lateness in all is forgiven: a pause that long comes by on any machine."""

LEAST_S: Final = 0.02
"""A report for which less computing was expected of a member says nothing: it is added to the next."""

MOST_USUAL: Final = 1.5
"""What the plan is wrong by about one member alone is allowed for up to so many times; a life begins with all of it,
until its reports have shown that less will do."""

TRIAL_EVERY_S: Final = 2.0
"""A slow member is tried so often."""

FAST_FACTOR: Final = 1.5
"""A trial is good where it is at most so many times as slow as the best; less than ``FACTOR``, so that a member that
comes back stays."""

FAST_COUNT: Final = 4
"""Good trials in a row until a member is fast again: it takes some seconds."""

MOST_DOUBLINGS: Final = 6

_LEAST_RATIO: Final = 0.05

_LEARNS: Final = 0.25
"""Weight of a report in what is usual of a member."""


@dataclass(frozen=True)
class Spent:
    """What a member has computed since its last report: seconds of its own, and those that the plan expects."""

    seconds: float
    expected: float

    @property
    def ratio(self) -> float:
        """1 where the plan holds."""
        return self.seconds / self.expected


@dataclass
class _Pace:
    """Of one member, as far as its reports tell."""

    ratio: float
    usual: float = MOST_USUAL
    late: int = 0
    late_s: float = 0.0


class Lateness:
    """Of one life of a group.

    Args:
        portal: others are compared with it, and it is never slow itself: tokens, head and drafts stay with it whoever
            computes the layers, and its drafts alone, which are made beside its part, would have it go in and out.
    """

    def __init__(self, portal: str = "") -> None:
        self._portal = portal
        self._paces: dict[str, _Pace] = {}

    def period(self, reports: Mapping[str, Spent]) -> str | None:
        """The reports of the members that had enough to do; each is compared with the last ones of the others.

        Returns who is slow, the slowest where there are several; None: nobody.
        """
        for name, spent in reports.items():
            self._paces.setdefault(name, _Pace(0.0)).ratio = spent.ratio
        slow = [(times, name) for name, spent in reports.items() if (times := self._slow_by(name, spent)) is not None]
        return max(slow)[1] if slow else None

    def _slow_by(self, name: str, spent: Spent) -> float | None:
        """How many times as slow as the others a member is; None where it is not slow, or may be, or is alone."""
        others = [pace.ratio for other, pace in self._paces.items() if other != name]
        if not others:
            return None
        pace, beside = self._paces[name], max(_LEAST_RATIO, median_low(others))
        times, bound = spent.ratio / beside, FACTOR * pace.usual
        pace.late_s = max(0.0, pace.late_s + spent.seconds - bound * beside * spent.expected)
        if times > bound:
            pace.late += 1
        else:
            pace.late = max(0, pace.late - 1)
            pace.usual += _LEARNS * (min(MOST_USUAL, max(1.0, times)) - pace.usual)
        if name == self._portal:
            return None
        return times if pace.late >= COUNT or pace.late_s > PAUSE_S else None


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
