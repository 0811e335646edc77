"""What to do about a session that has lost its place in the cloud: which cloud server next, when, and until when. Pure.

Time is in seconds on any one clock, cloud servers are numbered in the order in which they were named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wire.errors import REPLAYABLE, Code, SessionFailed

MAX_ATTACHES: Final = 3
"""Attaches in a row without an answer: rows that bring a cloud server down must not be taken to all of them."""

LOSSES: Final = frozenset({Code.LOST, Code.UPSTREAM_LOST})
NO_ROOM: Final = frozenset({Code.PREEMPTED, Code.SESSION_LIMIT})
MOVED: Final = LOSSES | NO_ROOM | {Code.EVICTED, Code.DRAINING}
"""Ends that say nothing about the session's rows, so that they do not count as failed attaches."""

ROOM_AFTER_S: Final = 0.5
"""When to ask for room again where the cloud server does not say."""

ELSEWHERE: Final = LOSSES | {Code.DRAINING, Code.SESSION_LIMIT, Code.TIMEOUT}
"""Ends after which the same cloud server is no better than any other."""


class Recovery:
    """How one session comes back.

    Args:
        within_s: how long it may take until new rows are answered again.
        room_within_s: the same when cloud servers are there and have no room.

    Attributes:
        failure: why it lost its last place; None once new rows have been answered after that.
    """

    def __init__(self, within_s: float, room_within_s: float) -> None:
        self.failure: SessionFailed | None = None
        self._within_s = within_s
        self._room_within_s = room_within_s
        self._last: int | None = None
        self._began: float | None = None
        self._attaches = 0
        self._not_before: dict[int, float] = {}

    def began(self, now: float) -> None:
        """Somebody waits for rows and the session has no place; further calls change nothing until rows come."""
        if self._began is None:
            self._began = now

    def progressed(self) -> None:
        """New rows were answered."""
        self._began = self.failure = None
        self._attaches = 0

    def ended(self, cloud: int, failure: SessionFailed, now: float, random: float) -> None:
        """Its place at ``cloud`` is gone. ``random`` is uniform in [0, 1): those turned away together come back spread
        out."""
        self._last, self.failure = cloud, failure
        wait_s = failure.retry_after_s
        if wait_s is None and failure.code in NO_ROOM:
            wait_s = ROOM_AFTER_S
        if wait_s is not None:
            self._not_before[cloud] = now + wait_s * (1 + random / 2)
        elif failure.code not in MOVED:
            self._attaches += 1

    def verdict(self, now: float) -> SessionFailed | None:
        """Why it cannot come back; None while it may."""
        failure = self.failure
        if failure is None:
            return self._too_late(now)
        if failure.code not in REPLAYABLE or self._attaches >= MAX_ATTACHES:
            return failure
        return self._too_late(now)

    def deadline(self) -> float:
        """When ``verdict`` will say that it is too late."""
        assert self._began is not None
        no_room = self.failure is not None and self.failure.code in NO_ROOM
        return self._began + (self._room_within_s if no_room else self._within_s)

    def wait_s(self, cloud: int, now: float) -> float:
        """How long to wait before it is attached to ``cloud``."""
        return max(0.0, self._not_before.get(cloud, now) - now)

    def choose(self, usable: Sequence[bool]) -> int | None:
        """The cloud server to attach to, None to wait for one.

        Raises:
            SessionFailed: the one that did not answer in time is the only one there is.
        """
        last, failure = self._last, self.failure
        code = failure.code if failure is not None else None
        if last is not None and usable[last] and code is not None and code not in ELSEWHERE:
            return last
        others = (each for each, free in enumerate(usable) if free and (each != last or code in LOSSES))
        found = next(others, None)
        if found is not None:
            return found
        if code is Code.TIMEOUT and failure is not None:
            raise failure.with_traceback(None)
        return last if last is not None and usable[last] else None

    def _too_late(self, now: float) -> SessionFailed | None:
        if self._began is None or now < self.deadline():
            return None
        failure = self.failure
        if failure is not None and failure.code not in LOSSES:
            return failure
        return SessionFailed(
            Code.UPSTREAM_LOST, "no cloud server could be reached in time, the device keeps trying", retry_after_s=2.0
        )
