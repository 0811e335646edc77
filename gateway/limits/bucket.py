"""What has been taken of a limit per minute, and when it comes back. Pure: the time is an argument.

A bucket holds as much as the limit says, and each token that is taken comes back a minute after it was taken. So no
minute ever sees more than the limit; a bucket that fills in a steady trickle lets nearly twice as much through in its
first one. Takings are kept by the whole second, and come back with the last of their second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

PERIOD_S: Final = 60


class Bucket:
    """What was taken in each second, by the second's number on the clock that ``now`` is read from."""

    def __init__(self, taken: Mapping[int, int] | None = None) -> None:
        self._taken = dict(taken or {})

    def used(self, now: float) -> int:
        """Return how much is out."""
        self._return(now)
        return sum(self._taken.values())

    def take(self, now: float, amount: int) -> int:
        """Take some; whoever calls has looked whether there is enough. Returns the second in which it was."""
        self._return(now)  # Nobody may look at a bucket that many take from.
        second = math.floor(now)
        self._taken[second] = self._taken.get(second, 0) + amount
        return second

    def settle(self, now: float, second: int, more: int) -> None:
        """Take more than was taken in ``second``, or less: what was reserved turned out to be another number. Behind
        its minute nothing more is given back, and what is taken counts from now."""
        if is_out(second, now):
            self._taken[second] = max(0, self._taken.get(second, 0) + more)
        elif more > 0:
            self.take(now, more)

    def wait_s(self, now: float, amount: int, limit: int) -> float:
        """Return after how many seconds ``amount`` more is there, if nobody else takes any; infinity: never."""
        over = self.used(now) + amount - limit
        if amount > limit:
            return math.inf
        for second in sorted(self._taken):
            if over <= 0:
                break
            over -= self._taken[second]
            if over <= 0:
                return second + 1 + PERIOD_S - now
        return 0.0

    def reset_s(self, now: float) -> float:
        """Return after how many seconds it is full again."""
        self._return(now)
        last = max((second for second, taken in self._taken.items() if taken), default=None)
        return 0.0 if last is None else last + 1 + PERIOD_S - now

    def _return(self, now: float) -> None:
        for second in [each for each in self._taken if not is_out(each, now)]:
            del self._taken[second]


def is_out(second: int, now: float) -> bool:
    """Whether what was taken in that second is not back yet. A second further ahead than a minute is one of a clock
    that was set back, and counts no more."""
    return -PERIOD_S <= second - math.floor(now) <= PERIOD_S
