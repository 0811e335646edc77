"""One session in the cloud, whichever server holds it now.

What ends it in one cloud server but says nothing against its rows makes it attach again, there or elsewhere: it resumes
where its keys and values are still kept, else it replays its history. Whoever waits for rows only waits longer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import torch

from device_agent.cloud_link import CloudLink
from device_agent.local import quiet
from device_agent.recovery import LOSSES, Recovery
from device_agent.session_log import Asked, Piece, SessionLog
from split_model.tensor_bytes import from_bytes, to_bytes
from wire.credits import Window
from wire.errors import REPLAYABLE, Code, ConnectionFailed, SessionFailed
from wire.frames import Tensor
from wire.messages import Close, CloudWelcome, Forward, Message, Open, Park, Result, Resume, Truncate

if TYPE_CHECKING:
    from device_agent.remote import RemoteSubmodel

log = structlog.get_logger()


@dataclass(frozen=True)
class _Kept:
    """A place that was lost with its connection and is kept by the cloud server until ``until``."""

    link: CloudLink
    token: str
    number: int
    until: float


class RemoteSession:
    """A session that outlives the cloud server it is in.

    Attributes:
        advised: called with a position and chunk sizes from there on when the cloud advises them.
    """

    def __init__(
        self,
        owner: RemoteSubmodel,
        link: CloudLink,
        recovery: Recovery,
        positions: int,
        prompt: int,
        expected: int,
    ) -> None:
        self.advised: Callable[[int, Sequence[int]], None] | None = None
        self._owner = owner
        self._positions = positions
        self._max_rows = owner.max_rows
        self._recovery = recovery
        self._log = SessionLog()
        self._link: CloudLink | None = None
        self._number = 0
        self._kept: _Kept | None = None
        self._resuming = False
        self._sent = self._answers = 0
        self._quiet_since = 0.0
        self._failure: SessionFailed | None = None
        self._loop = asyncio.get_running_loop()
        self._recovering: asyncio.Task[None] | None = None
        self.expect(prompt, expected)
        self._attach(link)

    @property
    def position(self) -> int:
        """Where the next row goes."""
        return self._log.position

    @property
    def nbytes(self) -> int:
        """Bytes held here, for the case that the session has to be replayed."""
        return self._log.history.nbytes

    def expect(self, prompt: int, expected: int) -> None:
        """See ``SubmodelSession.expect``."""
        self._prompt_end = self._log.position + prompt
        self._expected = max(expected, self._prompt_end)
        self._in_prompt = True
        self._began_at: float | None = None
        self._token_at = 0.0

    def forward(self, hidden: torch.Tensor, want: int) -> asyncio.Future[torch.Tensor]:
        """See ``SubmodelSession.forward``. Rows beyond the window wait here."""
        rows = hidden.shape[0]
        self._check_open()
        if not 0 <= want <= rows or not 0 < rows <= self._max_rows:
            raise ValueError(f"{want} of {rows} rows wanted; a forward has 1 to {self._max_rows} rows")
        if self._log.position + rows > self._positions:
            raise ValueError(f"position {self._log.position + rows} is beyond the session's {self._positions}")
        asked = Asked(hidden, want, quiet(self._loop.create_future()))
        if self._began_at is None:
            self._began_at = self._loop.time()
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

    def park(self) -> None:
        """See ``SubmodelSession.park``. A session that has no place in the cloud gets one when it is used next."""
        self._check_open()
        if self._log.waiting:
            raise ValueError("rows are not answered yet: the session cannot be parked")
        self.advised = None
        if self._link is not None and self._log.settled:
            self._post(Park(self._number))
        else:
            self._leave()

    def close(self) -> None:
        """End the session here and in the cloud."""
        self.fail(SessionFailed(Code.CANCELLED, "the session was closed"))

    def fail(self, failure: SessionFailed) -> None:
        """End it with ``failure``, here and in the cloud; the first one stays."""
        if self._failure is None:
            self._failure = failure
        for asked in self._log.pending:
            if not asked.answer.done():
                asked.answer.set_exception(self._failure)
        self._log = SessionLog()
        self.advised = None
        self._leave()
        recovering, self._recovering = self._recovering, None
        if recovering is not None and recovering is not asyncio.current_task():
            recovering.cancel()

    # ---- what its link tells ----

    def answered(self, result: Result, tensors: tuple[Tensor, ...]) -> None:
        """The answer to the oldest piece that was sent."""
        piece = self._log.oldest
        if piece is None or result.sequence != self._answers or not _fits(piece, tensors):
            self.ended(SessionFailed(Code.INTERNAL, "the cloud server's answer does not fit the question"))
            return
        rows = from_bytes(tensors[0].dtype, tensors[0].shape, tensors[0].data) if tensors else None
        if rows is not None and not bool(torch.isfinite(rows).all()):
            self.fail(SessionFailed(Code.NOT_FINITE, "the cloud server's rows hold NaN or infinity"))
            return
        now = self._quiet_since = self._loop.time()
        assert self._link is not None
        self._link.measure(result, piece.posted, now, piece.hidden.nbytes, 0 if rows is None else rows.nbytes)
        self._answers += 1
        self._window.give(piece.hidden.shape[0])
        self._log.answered()
        self._resuming = False
        self._kept = None
        asked = piece.asked
        if asked is not None:
            self._recovery.progressed()
            if rows is not None:
                asked.outputs.append(rows)
            if piece.last:
                self._time(asked, now)
                if not asked.answer.done():
                    asked.answer.set_result(_joined(asked))
        if not self._log.settled:
            self._pump()

    def ended(self, failure: SessionFailed) -> None:
        """Its place in the cloud is gone; a new one is found when somebody waits for rows."""
        link = self._link
        assert link is not None
        refused_resume = self._resuming and failure.code in (Code.UNKNOWN_SESSION, Code.BAD_POSITION)
        if failure.code is not Code.SESSION_LIMIT:
            self._kept = None
        self._leave()
        if not refused_resume:
            self._note(link, failure)
        self._go_on()

    def lost(self) -> None:
        """The connection is gone. What is held there can be resumed for a while."""
        link = self._link
        assert link is not None and link.welcome is not None
        welcome = link.welcome
        if welcome.resume_token and welcome.resume_s > 0:
            until = self._loop.time() + welcome.resume_s
            self._kept = _Kept(link, welcome.resume_token, self._number, until)
        link.detach(self._number)
        self._link = None
        self._note(link, SessionFailed(Code.UPSTREAM_LOST, "the connection to the cloud server was lost"))
        self._go_on()

    def advice(self, begin: int, sizes: Sequence[int]) -> None:
        """Chunk sizes from position ``begin`` on."""
        if self.advised is not None:
            self.advised(begin, sizes)

    def look(self, now: float) -> None:
        """Go elsewhere when an answer is overdue."""
        within_s = self._owner.reply_within_s
        if self._log.oldest is not None and now - self._quiet_since > within_s:
            self.ended(SessionFailed(Code.TIMEOUT, f"the cloud server did not answer within {within_s:g} s"))

    # ---- coming back ----

    def _go_on(self) -> None:
        """Send what may be sent, find a place first where there is none and somebody waits."""
        if self._link is not None:
            self._pump()
        elif self._log.waiting and self._recovering is None and self._failure is None:
            self._recovery.began(self._loop.time())
            self._recovering = asyncio.create_task(self._recover())

    async def _recover(self) -> None:
        try:
            while self._link is None and self._failure is None:
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
        now, links = self._loop.time(), self._owner.links
        failure = self._recovery.verdict(now)
        if failure is not None:
            raise failure.with_traceback(None)
        chosen = self._recovery.choose([link.ready for link in links])
        wait_s = self._recovery.deadline() - now
        if chosen is not None:
            wait_s = min(wait_s, self._recovery.wait_s(chosen, now))
            if wait_s <= 0:
                self._attach(links[chosen])
                return
        await self._owner.news(wait_s)

    def _attach(self, link: CloudLink) -> None:
        """Begin anew at ``link``, which is ready: as a resumed session where that may work, else with all rows."""
        welcome, kept, rows = link.welcome, self._kept, self._log
        assert isinstance(welcome, CloudWelcome)
        self._link, self._number = link, link.attach(self)
        self._window, self._most = Window(welcome.window_rows), link.max_rows
        self._sent = self._answers = 0
        position = 0
        if kept is not None and kept.link is link and self._loop.time() < kept.until:
            position = rows.resumable
        self._resuming = position > 0
        rows.begin(position)
        if kept is not None and self._resuming:
            first: Message = Resume(self._number, kept.token, kept.number, position)
        else:
            positions = min(self._positions, welcome.max_positions)
            prompt = min(max(self._prompt_end, rows.position), positions)
            first = Open(
                self._number,
                positions,
                prompt,
                min(max(self._expected, prompt), positions),
                self._recovery.failure is not None and self._recovery.failure.code is not Code.SESSION_LIMIT,
            )
        failure = self._recovery.failure
        if failure is not None:
            how = "resume" if self._resuming else "replay"
            log.info("session attached again", why=failure.code.value, how=how, rows=rows.position - position)
        self._post(first)
        if self._link is not None:
            self._pump()

    def _pump(self) -> None:
        """Send what the window has room for."""
        link, number, window, rows = self._link, self._number, self._window, self._log
        while self._link is link and link is not None:
            idle = rows.oldest is None
            each = rows.next(self._most, window.limit - window.in_flight)
            if each is None:
                return
            if isinstance(each, int):
                self._post(Truncate(number, each))
                continue
            now = each.posted = self._loop.time()
            if idle:
                self._quiet_since = now
            window.take(each.hidden.shape[0])
            link.monitor.sent(now, each.hidden.nbytes)
            self._sent += 1
            self._post(Forward(number, self._sent - 1, each.position, each.want), [Tensor(*to_bytes(each.hidden))])

    def _post(self, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        assert self._link is not None
        try:
            self._link.post(message, tensors)
        except ConnectionFailed:  # The link itself will know in a moment.
            self.lost()

    def _leave(self) -> None:
        """Give up its place in the cloud, if it has one."""
        link, self._link = self._link, None
        if link is not None and link.detach(self._number):  # Else the cloud has ended it and knows.
            with suppress(ConnectionFailed):
                link.post(Close(self._number))

    def _note(self, link: CloudLink, failure: SessionFailed) -> None:
        self._recovery.ended(self._owner.links.index(link), failure, self._loop.time(), random.random())
        if failure.code not in REPLAYABLE:
            self.fail(failure)
        elif failure.code not in LOSSES:
            log.info("session lost its place", code=failure.code.value)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _time(self, asked: Asked, now: float) -> None:
        """Take the time of a wanted answer: to the first token, or since the one before."""
        if not asked.want or self._began_at is None:
            return
        assert self._link is not None
        if not self._in_prompt:
            self._link.times.tbt(now - self._token_at)
        elif self._log.history.length >= self._prompt_end:
            self._in_prompt = False
            self._link.times.ttft(now - self._began_at)
        self._token_at = now


def _joined(asked: Asked) -> torch.Tensor:
    outputs = asked.outputs
    if not outputs:
        return asked.hidden[:0]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _fits(piece: Piece, tensors: tuple[Tensor, ...]) -> bool:
    if piece.want == 0:
        return not tensors
    name = str(piece.hidden.dtype).removeprefix("torch.")
    shape = (piece.want, piece.hidden.shape[1])
    return len(tensors) == 1 and tensors[0].shape == shape and tensors[0].dtype == name
