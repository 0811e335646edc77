"""A session's rows sent ahead to the cloud server where it is to go on, while it is still answered where it is.

So whoever waits for its next rows waits for the last few that are missing there, not for all that were ever sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from device_agent.cloud.asked import Asked, Turn
from device_agent.cloud.attachment import Attachment
from device_agent.cloud.link import CloudLink
from device_agent.cloud.log import SessionLog
from device_agent.cloud.recovery import Recovery
from device_agent.sharing.compute import quiet
from wire.errand import Errand
from wire.errors import SessionFailed
from wire.messages import AnyMessage
from wire.session_messages import CloudWelcome, Resume

FEW_ROWS: Final = 16
"""So many rows are not sent ahead: they are what a round or two leave behind, and go with the move."""

AGAIN_AFTER_S: Final = 1.0
"""When a cloud server that did not take a session is asked again, where it does not say."""


class Ahead:
    """A session of its own there, with a copy of the history that follows what is answered. In the end it is given up,
    or the session resumes it, on the same connection.

    Args:
        link: where to; it is ready.
        log: of the session that is to move.
        recovery: of that session, which learns nothing of what is answered here.
        opening: the message that opens it there, given its number.

    Attributes:
        over: whether it has ended there: refused, given up, or the connection is gone.
    """

    def __init__(
        self, link: CloudLink, log: SessionLog, recovery: Recovery, opening: Callable[[int], AnyMessage]
    ) -> None:
        self.link = link
        self.over = False
        self._clock = asyncio.get_running_loop().time
        self._again_at = 0.0
        self._log = log
        log.lowest = log.history.length
        self._copy = log.fork(log.history.length)
        self._turn = Turn(log.history.length, 0.0)
        self._attachment = Attachment(link, self._copy, 0, recovery.fresh(), self._gone)
        self._attachment.begin(opening(self._attachment.number))

    def follow(self) -> None:
        """Send what has been answered since, and have forgotten what the session has."""
        log, copy = self._log, self._copy
        if self.over:
            return
        if log.lowest < copy.position:
            copy.truncate(log.lowest)
        log.lowest = log.history.length
        if log.history.length - copy.position > FEW_ROWS:
            missing = log.history.rows(copy.position, log.history.length)
            copy.forward(Asked(missing, 0, quiet(asyncio.get_running_loop().create_future()), self._turn))
        self._attachment.pump()

    @property
    def position(self) -> int:
        """Up to where the session's rows are there; 0 once it is over."""
        return 0 if self.over else min(self._copy.resumable, self._log.lowest)

    @property
    def ready(self) -> bool:
        """Whether no more than a few rows are missing there."""
        return not self.over and self._log.history.length - self.position <= FEW_ROWS

    @property
    def out_of_date(self) -> bool:
        """Whether it is over, or soon will be, and another may be tried."""
        if not self.over and self.link.draining:
            self.give_up()
        return self.over and self._clock() >= self._again_at

    def taken_over(self, errand: Errand | None) -> Callable[[int], AnyMessage]:
        """Send and hear nothing more here; returns the message by which the session goes on from ``position``, given
        its new number, and what it works for."""
        welcome, old, position = self.link.welcome, self._attachment.number, self.position
        assert isinstance(welcome, CloudWelcome) and not self.over
        self.over = True
        self._attachment.release()
        return lambda number: Resume(number, welcome.resume_token, old, position, errand)

    def give_up(self) -> None:
        """End it there."""
        if not self.over:
            self.over = True
            self._attachment.leave()

    def _gone(self, failure: SessionFailed) -> None:
        self.over = True
        self._again_at = self._clock() + (failure.retry_after_s or AGAIN_AFTER_S)
