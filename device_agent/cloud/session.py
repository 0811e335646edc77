"""One session in the cloud, whichever server holds it now.

What ends it in one cloud server but says nothing against its rows makes it attach again, there or elsewhere: it resumes
where its keys and values are still kept, else it replays its history. Whoever waits for rows only waits longer.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence

import structlog
import torch

from device_agent.cloud.asked import Asked, Turn
from device_agent.cloud.attachment import Attachment
from device_agent.cloud.clouds import Clouds
from device_agent.cloud.link import CloudLink
from device_agent.cloud.log import SessionLog
from device_agent.cloud.recovery import LOSSES, Recovery
from device_agent.sharing.compute import quiet
from service.sparing_log import SparingLog
from split_model.hints import Pace, TurnSpent
from split_model.tree import check_path, reach, tree_behind
from wire.errors import REPLAYABLE, Code, SessionFailed
from wire.limits import MAX_BRANCHING_ROWS
from wire.messages import AnyMessage
from wire.session_messages import CloudWelcome, Fork, Open, Park, Resume

log = structlog.get_logger()
often = SparingLog()


class RemoteSession:
    """A session that outlives the cloud server it is in.

    Args:
        clouds: where it may be.
        recovery: how it comes back.
        positions: most it may reach; ``prompt``, ``expected``: see ``expect``.
        log: what it begins with.
    """

    def __init__(
        self,
        clouds: Clouds,
        recovery: Recovery,
        positions: int,
        prompt: int,
        expected: int,
        log: SessionLog | None = None,
    ) -> None:
        self._clouds = clouds
        self._recovery = recovery
        self._positions = positions
        self._log = SessionLog() if log is None else log
        self._attachment: Attachment | None = None
        self._failure: SessionFailed | None = None
        self._loop = asyncio.get_running_loop()
        self._recovering: asyncio.Task[None] | None = None
        self.expect(prompt, expected)

    @property
    def position(self) -> int:
        """Where the next row goes."""
        return self._log.position

    @property
    def nbytes(self) -> int:
        """Bytes held here, for the case that the session has to be replayed."""
        return self._log.history.nbytes

    @property
    def branching(self) -> RemoteSession:
        """Rows may branch in the cloud."""
        return self

    @property
    def hints(self) -> RemoteSession:
        """The layers run elsewhere."""
        return self

    @property
    def spent(self) -> TurnSpent | None:
        """See ``SessionHints.spent``."""
        return self._turn.spent

    @property
    def pace(self) -> Pace:
        """See ``SessionHints.pace``."""
        return self._link.pace.pace

    def drafts_in(self, seconds: float) -> None:
        """See ``SessionHints.drafts_in``; the cloud server is told when it has changed."""
        self._link.draft_us = round(seconds * 1e6)

    def take_advice(self) -> tuple[int, Sequence[int]] | None:
        """See ``SessionHints.take_advice``: what the cloud server said last."""
        if self._attachment is None:
            return None
        advice, self._attachment.advice = self._attachment.advice, None
        return advice

    def expect(self, prompt: int, expected: int) -> None:
        """See ``SubmodelSession.expect``."""
        self._turn = Turn(self._log.position + prompt, self._loop.time())
        self._expected = max(expected, self._turn.prompt_end)
        self.take_advice()  # It was for another prompt.

    def forward(self, hidden: torch.Tensor, want: int) -> asyncio.Future[torch.Tensor]:
        """See ``SubmodelSession.forward``. Rows beyond the window wait here, and what is more than a cloud server takes
        at once is cut: which one that is may change."""
        return self._ask(hidden, want, None)

    def forward_nodes(self, hidden: torch.Tensor, want: int, parents: Sequence[int]) -> asyncio.Future[torch.Tensor]:
        """See ``Branching.forward_nodes``. Nodes are not cut: those are answered, the first ones, that the cloud server
        takes at once."""
        return self._ask(hidden, want, parents)

    def _ask(self, hidden: torch.Tensor, want: int, parents: Sequence[int] | None) -> asyncio.Future[torch.Tensor]:
        rows, position = hidden.shape[0], self._log.position
        self._check_open()
        self._check_line()
        if not 0 <= want <= rows or not rows:
            raise ValueError(f"{want} of {rows} rows wanted; a forward has at least 1")
        tree, end = None, position + rows
        if parents is not None:
            tree, _ = tree_behind(position, parents, rows, MAX_BRANCHING_ROWS)
            end = reach(tree)
        if end > self._positions:
            raise ValueError(f"position {end} is beyond the session's {self._positions}")
        asked = Asked(hidden, want, quiet(self._loop.create_future()), self._turn, tree)
        if self._turn.asked_at is None:
            self._turn.asked_at = self._loop.time()
        self._log.forward(asked)
        self._go_on()
        return asked.answer

    def truncate(self, position: int) -> None:
        """See ``SubmodelSession.truncate``."""
        self._check_open()
        if not 0 <= position <= self._log.position:
            raise ValueError(f"cannot truncate to {position}, the session is at {self._log.position}")
        self._log.truncate(position)
        self._go_on()

    def keep(self, nodes: Sequence[int]) -> None:
        """See ``Branching.keep``."""
        self._check_open()
        asked = self._log.branching
        check_path(asked.tree if asked is not None else None, nodes)
        self._log.keep(nodes)
        self._go_on()

    def fork(self, position: int) -> RemoteSession:
        """See ``SubmodelSession.fork``. The rows of history are shared. Where the cloud server does not have the rows
        now, or does not take the fork, they are replayed once somebody waits for what follows."""
        self._check_open()
        if not 0 <= position <= self._log.history.length:
            raise ValueError(f"cannot fork at {position}, {self._log.history.length} rows are answered")
        log = self._log.fork(position)
        forked = RemoteSession(self._clouds, self._recovery.fresh(), self._positions, 0, self._expected, log)
        forked._turn = self._turn.fork(position, self._loop.time())
        source = self._attachment
        if source is not None and 0 < position <= self._log.resumable:
            forked._begin(source.link, position, lambda number: Fork(number, source.number, position))
        return forked

    def park(self) -> None:
        """See ``SubmodelSession.park``. A session that has no place in the cloud gets one when it is used next."""
        self._check_open()
        self._check_line()
        if self._log.waiting:
            raise ValueError("rows are not answered yet: the session cannot be parked")
        if self._attachment is not None and self._log.settled:
            self._attachment.post(Park(self._attachment.number))
        else:
            self._leave()

    def close(self) -> None:
        """End the session here and in the cloud."""
        self.fail(SessionFailed(Code.CANCELLED, "the session was closed"))

    def fail(self, failure: SessionFailed) -> None:
        """End it with ``failure``, here and in the cloud; the first one stays."""
        if self._failure is None:
            self._failure = failure
        self._log.fail(self._failure)
        self._log = SessionLog()
        self._leave()
        recovering, self._recovering = self._recovering, None
        if recovering is not None and recovering is not asyncio.current_task():
            recovering.cancel()

    # ---- coming back ----

    @property
    def _link(self) -> CloudLink:
        """Where it is, or would be now."""
        return self._attachment.link if self._attachment is not None else self._clouds.preferred

    def _go_on(self) -> None:
        """Send what may be sent, find a place first where there is none and somebody waits."""
        if self._attachment is not None:
            self._attachment.pump()
        elif self._log.waiting and self._recovering is None and self._failure is None:
            self._recovery.began(self._loop.time())
            self._recovering = asyncio.create_task(self._recover())

    async def _recover(self) -> None:
        try:
            while self._attachment is None and self._failure is None:
                await self._find()
        except SessionFailed as failure:
            self.fail(failure)
        except Exception:  # Whoever waits for rows must learn of it.
            log.exception("bug in the recovery of a session")
            self.fail(SessionFailed(Code.INTERNAL, "the session could not be brought back"))
        finally:
            self._recovering = None

    async def _find(self) -> None:
        """Attach where it is best now, or wait until that may have changed. Raises ``SessionFailed``."""
        now, links = self._loop.time(), self._clouds.links
        chosen = self._recovery.choose([link.takes(self._log.position) for link in links], now)
        ready_in_s = self._recovery.wait_s(chosen, now) if chosen is not None else math.inf
        failure = self._recovery.verdict(now, place=ready_in_s <= 0)
        if failure is not None:
            raise failure.with_traceback(None)
        if chosen is not None and ready_in_s <= 0:
            self.attach(links[chosen])
        else:
            await self._clouds.news(min(ready_in_s, self._recovery.deadline() - now))

    def attach(self, link: CloudLink) -> None:
        """Begin anew at ``link``, which is ready: as a resumed session where that may work, else with all rows."""
        log, failure = self._log, self._recovery.failure
        kept = self._recovery.kept_at(self._clouds.links.index(link), self._loop.time())
        position = log.resumable if kept is not None else 0
        if failure is not None:
            how = "resume" if position else "replay"
            often.info("session attached again", why=failure.code.value, how=how, rows=log.position - position)
        if kept is not None and position:
            token, old = kept.token, kept.number
            self._begin(link, position, lambda number: Resume(number, token, old, position))
            return
        assert isinstance(link.welcome, CloudWelcome)
        positions = min(self._positions, link.welcome.max_positions)
        prompt = min(max(self._turn.prompt_end, log.position), positions)
        expected, replayed = min(max(self._expected, prompt), positions), log.history.length > 0
        self._begin(link, 0, lambda number: Open(number, positions, prompt, expected, replayed))

    def _begin(self, link: CloudLink, position: int, first: Callable[[int], AnyMessage]) -> None:
        """Go on at ``link``, where the rows up to ``position`` are there; ``first`` is the message that says so, given
        the session's number there."""
        attachment = self._attachment = Attachment(link, self._log, position, self._recovery, self._gone)
        attachment.begin(first(attachment.number))

    def _leave(self) -> None:
        """Give up its place in the cloud, if it has one."""
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.leave()

    def _gone(self, failure: SessionFailed) -> None:
        """Its place in the cloud is gone; a new one is found when somebody waits for rows."""
        attachment, self._attachment = self._attachment, None
        assert attachment is not None
        index, now = self._clouds.links.index(attachment.link), self._loop.time()
        if attachment.refuses_resume(failure):
            self._recovery.keep(None)
            return self._go_on()
        self._recovery.ended(index, failure, now, random.random(), attachment.suspects(failure))
        if failure.code is Code.UPSTREAM_LOST:
            self._recovery.keep(attachment.kept(index))
        if failure.code not in REPLAYABLE:
            self.fail(failure)
        elif failure.code not in LOSSES:
            often.info("session lost its place", failure.code.value, code=failure.code.value)
        return self._go_on()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _check_line(self) -> None:
        if self._log.branching is not None:
            raise ValueError("rows branch here: keep some of them, or truncate, before anything else")
