"""Where one session is in the cloud, and how it comes to be elsewhere.

What ends it in one cloud server but says nothing against its rows makes it attach again, there or elsewhere: it resumes
where its keys and values are still kept, else it replays its history. Whoever waits for rows only waits longer. A cloud
server that drains goes on answering while the rows are sent ahead to another one.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence

import structlog

from device_agent.cloud.ahead import Ahead
from device_agent.cloud.attachment import Attachment
from device_agent.cloud.clouds import Clouds
from device_agent.cloud.link import CloudLink
from device_agent.cloud.log import SessionLog
from device_agent.cloud.recovery import LOSSES, NO_ROOM, Recovery
from device_agent.sharing.served_request import ServedRequest
from service.sparing_log import SparingLog
from wire.errors import REPLAYABLE, Code, SessionFailed
from wire.messages import AnyMessage
from wire.session_messages import Park, Resume

log = structlog.get_logger()
often = SparingLog()


class CloudPlace:
    """The place of one session, or none.

    Args:
        clouds: where it may be.
        asked: what the session has asked for.
        recovery: how it comes back.
        opening: the message that opens it anew at a link that is ready, given its number there.
        failed: called, with why, when it cannot come back.

    Attributes:
        attachment: the place; None while it has none.
        served: whose request the session works for.
    """

    def __init__(
        self,
        clouds: Clouds,
        asked: SessionLog,
        recovery: Recovery,
        opening: Callable[[CloudLink], Callable[[int], AnyMessage]],
        failed: Callable[[SessionFailed], None],
    ) -> None:
        self.attachment: Attachment | None = None
        self.served = ServedRequest()
        self._clouds = clouds
        self._log = asked
        self._recovery = recovery
        self._opening = opening
        self._failed = failed
        self._ahead: Ahead | None = None
        self._parked = self._closed = False
        self._loop = asyncio.get_running_loop()
        self._recovering: asyncio.Task[None] | None = None

    @property
    def link(self) -> CloudLink:
        """Where it is, or would be now."""
        return self.attachment.link if self.attachment is not None else self._clouds.preferred

    def serve(self, served: ServedRequest) -> None:
        """The session works for another request; the cloud server is told with the next rows."""
        self.served = served
        if self.attachment is not None:
            self.attachment.errand = served.errand

    def take_advice(self) -> tuple[int, Sequence[int]] | None:
        """What the cloud server advised last; the next call returns None until it does again."""
        if self.attachment is None:
            return None
        advice, self.attachment.advice = self.attachment.advice, None
        return advice

    def go_on(self) -> None:
        """Send what may be sent, find a place first where there is none and somebody waits."""
        self._parked = False
        if self._moved():
            return
        if self.attachment is not None:
            self.attachment.pump()
        elif self._log.waiting and self._recovering is None and not self._closed:
            self._recovery.began(self._loop.time())
            self._recovering = asyncio.create_task(self._recover())

    def attach(self, link: CloudLink) -> None:
        """Begin anew at ``link``, which is ready: as a resumed session where that may work, else with all rows."""
        asked, failure, errand = self._log, self._recovery.failure, self.served.errand
        kept = self._recovery.kept_at(link.place, self._loop.time())
        position = asked.resumable if kept is not None else 0
        if failure is not None:
            how = "resume" if position else "replay"
            rows = asked.position - position
            self._restored()
            often.info("session attached again", why=failure.code.value, how=how, rows=rows, **self.served.named)
        if kept is not None and position:
            token, old = kept.token, kept.number
            self.begin(link, position, lambda number: Resume(number, token, old, position, errand))
        else:
            self.begin(link, 0, self._opening(link))

    def begin(self, link: CloudLink, position: int, first: Callable[[int], AnyMessage]) -> None:
        """Go on at ``link``, where the rows up to ``position`` are there; ``first`` is the message that says so, given
        the session's number there."""
        asked, recovery = self._log, self._recovery
        attachment = self.attachment = Attachment(link, asked, position, recovery, self._gone, self._moves)
        attachment.begin(first(attachment.number))

    def park(self) -> None:
        """Have it kept where it is, if all is answered there; else it has no place until it is used next."""
        self.served = ServedRequest()
        if self.attachment is not None and self._log.settled and not self.attachment.link.draining:
            self._parked = True
            self._stay()
            self.attachment.post(Park(self.attachment.number))
        else:
            self._leave()

    def close(self) -> None:
        """Give it up, for good, and what was asked with it."""
        self._closed = True
        self._leave()
        self._log = SessionLog()
        recovering, self._recovering = self._recovering, None
        if recovering is not None and recovering is not asyncio.current_task():
            recovering.cancel()

    def _leave(self) -> None:
        attachment, self.attachment = self.attachment, None
        if attachment is not None:
            attachment.leave()
        self._stay()

    def _stay(self) -> None:
        """Send nothing ahead any more."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.give_up()

    def _restored(self) -> None:
        self._clouds.restored += 1
        self.served.progress.restored()

    # ---- coming back ----

    async def _recover(self) -> None:
        try:
            while self.attachment is None and not self._closed:
                await self._find()
        except SessionFailed as failure:
            self._failed(failure)
        except Exception:  # Whoever waits for rows must learn of it.
            log.exception("bug in the recovery of a session", **self.served.named)
            self._failed(SessionFailed(Code.INTERNAL, "the session could not be brought back"))
        finally:
            self._recovering = None

    async def _find(self) -> None:
        """Attach where it is best now, or wait until that may have changed. Raises ``SessionFailed``."""
        now, links = self._loop.time(), self._clouds.links
        chosen = self._recovery.choose([self._clouds.takes(link, self._log.position) for link in links], now)
        ready_in_s = self._recovery.wait_s(chosen, now) if chosen is not None else math.inf
        failure = self._recovery.verdict(now, place=ready_in_s <= 0)
        if failure is not None:
            raise failure.with_traceback(None)
        if chosen is not None and ready_in_s <= 0:
            self.attach(links[chosen])
        else:
            await self._clouds.news(min(ready_in_s, self._recovery.deadline() - now))

    def _gone(self, failure: SessionFailed) -> None:
        """Its place is gone; a new one is found when somebody waits for rows."""
        attachment, self.attachment = self.attachment, None
        assert attachment is not None
        place, now = attachment.link.place, self._loop.time()
        if attachment.refuses_resume(failure):
            self._recovery.keep(None)
            return self.go_on()
        self._recovery.ended(place, failure, now, random.random(), attachment.suspects(failure))
        if failure.code is Code.UPSTREAM_LOST:
            self._recovery.keep(attachment.kept(place))
        if failure.code in NO_ROOM:
            self._clouds.full(attachment.link)
        if failure.code not in REPLAYABLE:
            self._failed(failure)
        elif failure.code not in LOSSES:
            often.info("session lost its place", failure.code.value, code=failure.code.value, **self.served.named)
        ahead = self._ahead
        if ahead is not None and ahead.position and not ahead.link.draining:
            return self._follow(ahead)
        self._stay()  # What is there already is less than another place needs.
        return self.go_on()

    # ---- leaving a cloud server that drains ----

    def _moves(self) -> bool:
        """Send rows ahead to where it can go on, as far as may be now, and go there once they are there; whether that
        is under way."""
        if self.attachment is None or self._parked:
            return False
        if self._ahead is None or self._ahead.out_of_date:
            link = self._clouds.instead_of(self.attachment.link, self._log.position)
            if link is None:
                return False
            self._ahead = Ahead(link, self._log, self._recovery, self._opening(link))
        self._ahead.follow()
        return not self._moved() and not self._ahead.over

    def _moved(self) -> bool:
        """Go where its rows are by now, if they are and nothing is on its way; whether it has."""
        ahead, attachment = self._ahead, self.attachment
        if ahead is None or attachment is None or not ahead.ready or ahead.link.draining:
            return False
        if self._log.oldest is not None:
            return False
        attachment.leave()
        self._follow(ahead)
        return True

    def _follow(self, ahead: Ahead) -> None:
        self._ahead, position = None, ahead.position
        self._restored()
        often.info("session moved", rows=self._log.position - position, **self.served.named)
        self.begin(ahead.link, position, ahead.taken_over(self.served.errand))
