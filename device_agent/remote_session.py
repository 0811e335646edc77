"""One session in the cloud, whichever server holds it now.

What ends it in one cloud server but says nothing against its rows makes it attach again, there or elsewhere: it resumes
where its keys and values are still kept, else it replays its history. Whoever waits for rows only waits longer.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import structlog
import torch

from device_agent.cloud_link import CloudLink
from device_agent.local import quiet
from device_agent.place import Kept, Place
from device_agent.recovery import LOSSES, Recovery
from device_agent.row_bytes import joined
from device_agent.session_log import Asked, Piece, SessionLog
from device_agent.times import Breakdown
from split_model.nodes import check_path, reach, tree_behind
from wire.errors import REPLAYABLE, Code, ConnectionFailed, SessionFailed
from wire.frames import Tensor
from wire.limits import MAX_BRANCHING_ROWS
from wire.messages import CloudWelcome, Message, Open, Park, Result, Resume, Timings

if TYPE_CHECKING:
    from device_agent.remote import RemoteSubmodel

log = structlog.get_logger()


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
        self._recovery = recovery
        self._log = SessionLog()
        self._place: Place | None = None
        self._kept: Kept | None = None
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

    @property
    def timings(self) -> Timings | None:
        """Where the time of this turn went so far; None until its prompt is answered."""
        return self._breakdown.timings

    def expect(self, prompt: int, expected: int) -> None:
        """See ``SubmodelSession.expect``."""
        self._prompt_end = self._log.position + prompt
        self._expected = max(expected, self._prompt_end)
        self._in_prompt = True
        self._began_at: float | None = None
        self._token_at = 0.0
        self._breakdown = Breakdown(self._loop.time())

    def forward(
        self, hidden: torch.Tensor, want: int, parents: Sequence[int] | None = None
    ) -> asyncio.Future[torch.Tensor]:
        """See ``SubmodelSession.forward``. Rows beyond the window wait here, and what is more than a cloud server takes
        at once is cut: which one that is may change. Rows that branch are not cut."""
        rows, position = hidden.shape[0], self._log.position
        self._check_open()
        self._check_line()
        if not 0 <= want <= rows or not rows:
            raise ValueError(f"{want} of {rows} rows wanted; a forward has at least 1")
        tree, end = None, position + rows
        if parents is not None:
            tree, _ = tree_behind(position, parents, rows, min(MAX_BRANCHING_ROWS, self._owner.max_rows))
            end = reach(tree)
        if end > self._positions:
            raise ValueError(f"position {end} is beyond the session's {self._positions}")
        asked = Asked(hidden, want, quiet(self._loop.create_future()), tree)
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

    def keep(self, nodes: Sequence[int]) -> None:
        """See ``SubmodelSession.keep``."""
        self._check_open()
        asked = self._log.branching
        check_path(asked.tree if asked is not None else None, nodes)
        self._log.keep(nodes)
        self._go_on()

    def park(self) -> None:
        """See ``SubmodelSession.park``. A session that has no place in the cloud gets one when it is used next."""
        self._check_open()
        self._check_line()
        if self._log.waiting:
            raise ValueError("rows are not answered yet: the session cannot be parked")
        self.advised = None
        if self._place is not None and self._log.settled:
            self._post(Park(self._place.number))
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
        place = self._place
        assert place is not None
        try:
            piece, rows = place.answered(result, tensors)
        except SessionFailed as failure:
            self.ended(failure)
            return
        self._kept = None
        asked = piece.asked
        if asked is not None:
            self._recovery.progressed()
            if rows is not None:
                asked.outputs.append(rows)
            if piece.last:
                self._time(piece, asked.want, result, place.quiet_since)
                if not asked.answer.done():
                    asked.answer.set_result(joined(asked.outputs) if asked.outputs else asked.hidden[:0])
        if self._log.unsent:
            self._pump()

    def ended(self, failure: SessionFailed) -> None:
        """Its place in the cloud is gone; a new one is found when somebody waits for rows."""
        place = self._place
        assert place is not None
        refused_resume = place.resuming and failure.code in (Code.UNKNOWN_SESSION, Code.BAD_POSITION)
        if failure.code is not Code.SESSION_LIMIT:
            self._kept = None
        self._leave()
        if not refused_resume:
            self._note(place, failure)
        self._go_on()

    def lost(self) -> None:
        """The connection is gone. What is held there can be resumed for a while."""
        place, self._place = self._place, None
        assert place is not None
        self._kept = place.lost()
        self._note(place, SessionFailed(Code.UPSTREAM_LOST, "the connection to the cloud server was lost"))
        self._go_on()

    def room(self) -> None:
        """The link has room again."""
        self._go_on()

    def advice(self, begin: int, sizes: Sequence[int]) -> None:
        """Chunk sizes from position ``begin`` on."""
        if self.advised is not None:
            self.advised(begin, sizes)

    def look(self, now: float) -> None:
        """Go elsewhere when an answer is overdue."""
        within_s = self._owner.reply_within_s
        if self._place is not None and self._place.overdue(now, within_s):
            self.ended(SessionFailed(Code.TIMEOUT, f"the cloud server did not answer within {within_s:g} s"))

    # ---- coming back ----

    def _go_on(self) -> None:
        """Send what may be sent, find a place first where there is none and somebody waits."""
        if self._place is not None:
            self._pump()
        elif self._log.waiting and self._recovering is None and self._failure is None:
            self._recovery.began(self._loop.time())
            self._recovering = asyncio.create_task(self._recover())

    async def _recover(self) -> None:
        try:
            while self._place is None and self._failure is None:
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
        kept = links.index(self._kept.link) if self._kept is not None and now < self._kept.until else None
        takes = [link.takes(self._log.position, self._log.undivided) for link in links]
        chosen = self._recovery.choose(takes, now, kept)
        ready_in_s = self._recovery.wait_s(chosen, now) if chosen is not None else math.inf
        failure = self._recovery.verdict(now, place=ready_in_s <= 0)
        if failure is not None:
            raise failure.with_traceback(None)
        if chosen is not None and ready_in_s <= 0:
            self._attach(links[chosen])
        else:
            await self._owner.news(min(ready_in_s, self._recovery.deadline() - now))

    def _attach(self, link: CloudLink) -> None:
        """Begin anew at ``link``, which is ready: as a resumed session where that may work, else with all rows."""
        welcome, kept, rows = link.welcome, self._kept, self._log
        assert isinstance(welcome, CloudWelcome)
        position = 0
        if kept is not None and kept.link is link and self._loop.time() < kept.until:
            position = rows.resumable
        rows.begin(position)
        place = self._place = Place(link, self, rows, position > 0)
        if kept is not None and place.resuming:
            first: Message = Resume(place.number, kept.token, kept.number, position)
        else:
            positions = min(self._positions, welcome.max_positions)
            prompt = min(max(self._prompt_end, rows.position), positions)
            first = Open(
                place.number,
                positions,
                prompt,
                min(max(self._expected, prompt), positions),
                rows.history.length > 0,
            )
        failure = self._recovery.failure
        if failure is not None:
            how = "resume" if place.resuming else "replay"
            log.info("session attached again", why=failure.code.value, how=how, rows=rows.position - position)
        self._post(first)
        if self._place is place:
            self._pump()

    def _pump(self) -> None:
        """Send what may be sent."""
        assert self._place is not None
        try:
            self._place.pump()
        except ConnectionFailed:  # The link itself will know in a moment.
            self.lost()

    def _post(self, message: Message) -> None:
        assert self._place is not None
        try:
            self._place.link.post(message)
        except ConnectionFailed:
            self.lost()

    def _leave(self) -> None:
        """Give up its place in the cloud, if it has one."""
        place, self._place = self._place, None
        if place is not None:
            place.leave()

    def _note(self, place: Place, failure: SessionFailed) -> None:
        index, suspect = self._owner.links.index(place.link), place.suspect(failure)
        self._recovery.ended(index, failure, self._loop.time(), random.random(), suspect)
        if failure.code not in REPLAYABLE:
            self.fail(failure)
        elif failure.code not in LOSSES:
            log.info("session lost its place", code=failure.code.value)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _check_line(self) -> None:
        if self._log.branching is not None:
            raise ValueError("rows branch here: keep some of them, or truncate, before anything else")

    def _time(self, piece: Piece, want: int, result: Result, now: float) -> None:
        """Take the time of a wanted answer, which ``piece`` was the last to ask for: to the first token, or since the
        one before."""
        assert self._place is not None
        if not want or self._began_at is None:
            return
        times = self._place.link.times
        if not self._in_prompt:
            times.tbt(now - self._token_at)
        elif self._log.history.length >= self._prompt_end:
            self._in_prompt = False
            times.ttft(now - self._began_at)
        self._token_at = now
        if not self._in_prompt:
            self._breakdown.answered(piece.posted, now, result.queue_us, result.step_us)
