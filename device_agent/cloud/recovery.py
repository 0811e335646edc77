"""What to do about a session that has lost its place in the cloud: which cloud server next, when, and until when. Pure.

Time is in seconds on any one clock, cloud servers are numbered in the order in which they were named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wire.errors import REPLAYABLE, Code, SessionFailed

MAX_ATTACHES: Final = 3
"""Attaches in a row without an answer: rows that bring a cloud server down must not be taken to all of them."""

MAX_LOSSES: Final = 5
"""Losses in a row with rows on their way and no new rows answered in between. They are more than the attaches, since
most of them are nobody's rows' fault."""

LOSSES: Final = frozenset({Code.LOST, Code.UPSTREAM_LOST})
NO_ROOM: Final = frozenset({Code.PREEMPTED, Code.SESSION_LIMIT})
MOVED: Final = LOSSES | NO_ROOM | {Code.EVICTED, Code.DRAINING}
"""Ends that say nothing about the session's rows, so that they do not count as failed attaches."""

ROOM_AFTER_S: Final = 0.5
"""When to ask for room again where the cloud server does not say."""

ELSEWHERE: Final = LOSSES | {Code.DRAINING, Code.SESSION_LIMIT, Code.STAGE_LOST, Code.TIMEOUT}
"""Ends after which any other cloud server is better than the same."""


@dataclass(frozen=True)
class Kept:
    """What is left of a place that was lost with its connection: ``cloud`` keeps its keys and values until ``until``,
    for whoever shows ``token`` and names session ``number``."""

    cloud: int
    token: str
    number: int
    until: float


class Recovery:
    """How one session comes back.

    Args:
        within_s: how long it may take until new rows are answered again.
        reply_within_s: how long one answer may take, and how long to wait where cloud servers are there and have no
            room.

    Attributes:
        failure: why it lost its last place; None once new rows have been answered after that.
    """

    def __init__(self, within_s: float, reply_within_s: float) -> None:
        self.failure: SessionFailed | None = None
        self.reply_within_s = reply_within_s
        self._within_s = within_s
        self._kept: Kept | None = None
        self._last: int | None = None
        self._began: float | None = None
        self._untried = False
        """Whether nothing has been tried since somebody began to wait."""
        self._attaches = 0
        self._losses = 0
        self._not_before: dict[int, float] = {}
        self._ends: dict[int, int] = {}
        """The number of the last end at each cloud server since new rows were answered."""

    def fresh(self) -> Recovery:
        """The same for another session, of which nothing is known yet."""
        return Recovery(self._within_s, self.reply_within_s)

    def began(self, now: float) -> None:
        """Somebody waits for rows and the session has no place; further calls change nothing until rows come."""
        if self._began is None:
            self._began = now
            self._untried = True

    def progressed(self) -> None:
        """New rows were answered."""
        self._began = self.failure = self._kept = None
        self._attaches = self._losses = 0
        if self._ends:
            self._ends.clear()

    def ended(self, cloud: int, failure: SessionFailed, now: float, random: float, suspect: bool = False) -> None:
        """Its place at ``cloud`` is gone.

        Args:
            random: uniform in [0, 1): those turned away together come back spread out.
            suspect: whether rows of this session may have brought the cloud server, or a stage of it, down.
        """
        if failure.code is not Code.SESSION_LIMIT:
            self._kept = None
        self._last, self.failure, self._untried = cloud, failure, False
        self._ends[cloud] = max(self._ends.values(), default=0) + 1
        self._losses += suspect
        # Who says 0 has not said when: to come back at once is neither patience, nor less of an attach than any other.
        wait_s = failure.retry_after_s or (ROOM_AFTER_S if failure.code in NO_ROOM else 0.0)
        if wait_s:
            self._not_before[cloud] = now + wait_s * (1 + random / 2)
        elif failure.code not in MOVED:
            self._attaches += 1

    def keep(self, kept: Kept | None) -> None:
        """What can be resumed of its last place, if anything."""
        self._kept = kept

    def kept_at(self, cloud: int, now: float) -> Kept | None:
        """What can be resumed at ``cloud`` now."""
        kept = self._kept
        return kept if kept is not None and kept.cloud == cloud and now < kept.until else None

    def verdict(self, now: float, place: bool = False) -> SessionFailed | None:
        """Why it cannot come back; None while it may. ``place``: whether it may be attached somewhere at once, which is
        tried once, however short the time."""
        failure = self.failure
        worn_out = self._attaches >= MAX_ATTACHES or self._losses >= MAX_LOSSES
        if failure is not None and (worn_out or failure.code not in REPLAYABLE):
            return failure
        if self._began is None or now < self.deadline() or (place and self._untried):
            return None
        if failure is not None and failure.code not in LOSSES:
            return failure
        return SessionFailed(
            Code.UPSTREAM_LOST, "no cloud server could be reached in time, the device keeps trying", retry_after_s=2.0
        )

    def deadline(self) -> float:
        """When ``verdict`` will say that it is too late."""
        assert self._began is not None
        no_room = self.failure is not None and self.failure.code in NO_ROOM
        return self._began + (self.reply_within_s if no_room else self._within_s)

    def wait_s(self, cloud: int, now: float) -> float:
        """How long to wait before it is attached to ``cloud``."""
        return max(0.0, self._not_before.get(cloud, -math.inf) - now)

    def choose(self, usable: Sequence[bool], now: float) -> int | None:
        """The cloud server to attach to, None to wait for one. After a loss that is where its keys and values are
        still kept, else the one that takes it soonest, and of several the one that has not ended it lately.

        Raises:
            SessionFailed: the one that did not answer in time is the only one there is.
        """
        last, failure = self._last, self.failure
        code = failure.code if failure is not None else None
        kept = self._kept
        if code in LOSSES and kept is not None and now < kept.until and usable[kept.cloud]:
            return kept.cloud
        if last is not None and usable[last] and code is not None and code not in ELSEWHERE:
            return last
        free = [each for each, here in enumerate(usable) if here]
        if code is Code.TIMEOUT and failure is not None:
            if free == [last]:
                raise failure.with_traceback(None)
            free = [each for each in free if each != last]
        return min(free, key=lambda each: (self.wait_s(each, now), self._ends.get(each, 0), each), default=None)
