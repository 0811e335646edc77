"""How long to wait for decoders that will be back at once, so that a step is not run for the first of them alone. Pure.

A step of one row costs nearly what a step of sixteen does. When sixteen sessions have just been answered, their next
rows come back one by one within moments. To begin with the first would split them into two groups that take turns for
ever, at half the speed. So the next step waits for sessions that usually come back within a small part of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

SMOOTHING = 0.8
"""Weight of the past in a session's usual time to come back."""

PATIENCE = 0.25
"""At most this part of a step's time is spent waiting, from when the first row is ready and nothing else runs."""

PAUSE = 2.0
"""Of the time that somebody is usually away, what is longer by this factor counts as no more."""

LATE = 1.5
"""Somebody who takes longer than this times its usual time is not waited for any more, where others are ready."""


class Gathering(Generic[Key]):
    """When each session was answered, and how long it usually takes to send its next rows."""

    def __init__(self) -> None:
        self._usual: dict[Key, float] = {}
        self._away: dict[Key, float] = {}
        """As ``_usual``, but for a pause now and then: nobody is meant to be slowed down for having stopped once."""
        self._answered: dict[Key, float] = {}
        self._first_ready: float | None = None

    def answered(self, key: Key, now: float, more: bool = False) -> None:
        """Note that a session has been answered. With ``more`` of its rows still to be answered it need not come back
        for the next step: they are in it, or behind it."""
        if not more:
            self._answered[key] = now
        if self._first_ready is not None:
            # Rows that came during the step have not waited for others yet, only for the step.
            self._first_ready = now

    def arrived(self, key: Key, now: float) -> None:
        """Note that a session has sent rows, and how long that took it."""
        if self._first_ready is None:
            self._first_ready = now
        at = self._answered.pop(key, None)
        if at is not None:
            before = self._usual.get(key)
            took = now - at
            self._usual[key] = took if before is None else SMOOTHING * before + (1 - SMOOTHING) * took
            away = self._away.get(key, took)
            self._away[key] = SMOOTHING * away + (1 - SMOOTHING) * min(took, PAUSE * away)

    def closed(self, key: Key) -> None:
        """Forget a session."""
        self._usual.pop(key, None)
        self._away.pop(key, None)
        self._answered.pop(key, None)

    def began(self, now: float, waiting: bool) -> None:
        """Note that a step has begun; ``waiting``: whether rows are left for the next."""
        self._first_ready = now if waiting else None

    def due(self, now: float, predict: Callable[[int], float]) -> tuple[int, float]:
        """Return how many sessions are expected back and not overdue, and in how many seconds the next of them is due.

        A session that is late by a small part of a step of all who are away is still expected: a machine that stutters
        makes all of them late at once, and a long step begun in that moment would hold all of them up. None is expected
        for longer than such a step.

        Args:
            predict: seconds that a step of so many rows takes.
        """
        step_s = predict(max(1, len(self._answered)))
        soon = [
            at + usual - now
            for key, at in self._answered.items()
            if (usual := self._usual.get(key)) is not None
            and now <= at + usual + min(max((LATE - 1) * usual, PATIENCE * step_s), step_s)
        ]
        return len(soon), max(0.0, min(soon, default=0.0))

    @property
    def away_s(self) -> float:
        """Seconds that the session which comes back soonest is usually away; 0 where none is known."""
        return min(self._away.values(), default=0.0)

    def wait_s(self, now: float, step_s: float) -> float:
        """Return the seconds to wait before the next step, 0 to begin at once; ``step_s`` is a step's usual time."""
        if self._first_ready is None or not self._answered:
            return 0.0
        limit = self._first_ready + PATIENCE * step_s
        if now >= limit:
            return 0.0
        until = now
        for key, at in self._answered.items():
            usual = self._usual.get(key)
            if usual is not None and at + usual <= limit:
                until = max(until, at + LATE * usual)
        return max(0.0, min(until, limit) - now)
