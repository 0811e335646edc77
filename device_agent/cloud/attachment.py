"""A session at one cloud server: what may be sent there, and whether what comes back answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch

from device_agent.cloud.asked import Piece, Turn
from device_agent.cloud.chunks import DEFAULT_CHUNK
from device_agent.cloud.link import CloudLink
from device_agent.cloud.log import SessionLog
from device_agent.cloud.recovery import LOSSES, Kept, Recovery
from split_model.hints import TimeSpent
from split_model.packed_rows import unpack
from split_model.tensor_bytes import finite, from_bytes
from wire.credits import Window
from wire.errand import Errand
from wire.errors import Code, ConnectionFailed, SessionFailed
from wire.frames import Tensor
from wire.limits import MAX_TIMES
from wire.messages import AnyMessage
from wire.session_messages import Close, CloudWelcome, Forward, Keep, Result, Timing, Truncate

LONGEST_US = 2**32 - 1


class Attachment:
    """A session at one cloud server, under a number of its own: sends what has been asked, takes what comes back, and
    tells the session only of its end.

    Args:
        link: the cloud server, which is ready.
        log: what has been asked.
        begin: the position up to which its rows are there already.
        recovery: of the session; learns of rows that are answered.
        gone: called, with why, when this is over and the session has to go elsewhere.
        moves: called while the cloud server drains; whether the session is on its way elsewhere.

    Attributes:
        number: the session's on this connection.
        advice: how the cloud server said last that rows should be cut into chunks, and from which position on.
        errand: what the session works for since its last message that said so; None where that is known there.
    """

    def __init__(
        self,
        link: CloudLink,
        log: SessionLog,
        begin: int,
        recovery: Recovery,
        gone: Callable[[SessionFailed], None],
        moves: Callable[[], bool] = lambda: False,
    ) -> None:
        assert isinstance(link.welcome, CloudWelcome)
        self.link = link
        self.number = link.attach(self)
        self.advice: tuple[int, Sequence[int]] | None = None
        self.errand: Errand | None = None
        self._welcome = link.welcome
        self._log = log
        self._recovery = recovery
        self._gone = gone
        self._moves = moves
        self._resuming = begin > 0
        self._progressed = False
        """Whether new rows were answered here: what was wrong before is over then."""
        self._window = Window(link.welcome.window_rows)
        self._most = link.max_rows
        self._most_of_history = link.chunk or DEFAULT_CHUNK
        self._sent = self._answers = 0
        self._clock = asyncio.get_running_loop().time
        self._quiet_since = 0.0
        """When the cloud server last answered, or had nothing to answer."""
        log.begin(begin)

    def begin(self, message: AnyMessage) -> None:
        """Open, resume or fork it, and send what there is."""
        if self.post(message):
            self.pump()

    def post(self, message: AnyMessage) -> bool:
        """Send a message; False where the connection is gone instead."""
        try:
            self.link.post(message)
        except ConnectionFailed:  # The link itself will know in a moment.
            self.lost()
            return False
        return True

    def pump(self) -> None:
        """Send what the window has room for, and the link."""
        try:
            self._pump()
        except ConnectionFailed:
            self.lost()
        except SessionFailed as failure:
            self.ended(failure)

    def _pump(self) -> None:
        link, window, log = self.link, self._window, self._log
        while True:
            crowded, room = link.crowded, window.limit - window.in_flight
            if crowded:  # Short frames of new rows always go: they are somebody's next token.
                room = 0 if log.replaying else min(room, link.short_rows)
            idle = log.oldest is None
            each = log.next(self._most, room, self._most_of_history)
            if each is None:
                if crowded and log.unsent:
                    link.hold(self.number)
                return
            if isinstance(each, int):
                link.post(Truncate(self.number, each))
                continue
            if isinstance(each, tuple):
                link.post(Keep(self.number, list(each)))
                continue
            now = each.posted = self._clock()
            if idle:
                self._quiet_since = now
            window.take(each.hidden.shape[0])
            parents = None if each.parents is None else [parent + 1 for parent in each.parents]
            errand, self.errand = self.errand, None
            forward = Forward(self.number, self._sent, each.position, each.want, parents, errand)
            self._sent += 1
            each.frame = link.forward(forward, each.hidden, now)

    def answered(self, result: Result, tensors: tuple[Tensor, ...]) -> None:
        """The oldest piece that was sent has its answer."""
        log, link = self._log, self.link
        try:
            rows = self._checked(result, tensors)
        except SessionFailed as failure:
            return self.ended(failure)
        now = self._quiet_since = self._clock()
        piece = log.answered(rows)
        rows_count, up_bytes, asked = piece.hidden.shape[0], piece.hidden.nbytes, piece.asked
        queue_s, step_s, down_bytes = result.queue_us / 1e6, result.step_us / 1e6, 0 if rows is None else rows.nbytes
        link.pace.answered(piece.posted, now, up_bytes, down_bytes, queue_s, step_s, link.rtt_s)
        self._answers += 1
        self._window.give(rows_count)
        self._resuming = False
        if asked is not None:
            if not self._progressed:
                self._progressed = True
                self._recovery.progressed()
            if piece.last and asked.want:  # The times of what this piece was the last to ask for.
                at = log.history.length
                count(asked.turn, link.took, at, piece.posted, now, result.queue_us, result.step_us)
        if log.unsent:
            self.pump()
        return None

    def _checked(self, result: Result, tensors: tuple[Tensor, ...]) -> torch.Tensor | None:
        """The rows of an answer, None where none were wanted.

        Raises:
            SessionFailed: it does not fit the oldest piece that was sent, or its rows are not finite.
        """
        piece = self._log.oldest
        if piece is None or result.sequence != self._answers or not _fits(piece, tensors):
            raise SessionFailed(Code.INTERNAL, "the cloud server's answer does not fit the question")
        rows = _rows(tensors[0]) if tensors else None
        if rows is not None and not finite(rows):
            raise SessionFailed(Code.NOT_FINITE, "the cloud server's rows hold NaN or infinity")
        return rows

    def advised(self, begin: int, sizes: Sequence[int]) -> None:
        """Chunk sizes from position ``begin`` on."""
        self.advice = begin, sizes

    def look(self, now: float) -> None:
        """Go elsewhere when the cloud server has had rows for too long and has answered nothing."""
        oldest, within_s = self._log.oldest, self._recovery.reply_within_s
        if oldest is None:
            return
        if oldest.frame is not None and not oldest.frame.has_left:
            self._quiet_since = now
        if now - self._quiet_since > within_s:
            self.ended(SessionFailed(Code.TIMEOUT, f"the cloud server did not answer within {within_s:g} s"))

    def moves(self) -> bool:
        """The cloud server drains; whether the session is on its way elsewhere."""
        return self._moves()

    def ended(self, failure: SessionFailed) -> None:
        """The cloud server has ended it, or is left for ``failure``."""
        self.leave()
        self._gone(failure)

    def lost(self) -> None:
        """The connection is gone."""
        self.link.detach(self.number)
        self._gone(SessionFailed(Code.UPSTREAM_LOST, "the connection to the cloud server was lost"))

    def leave(self) -> None:
        """Give it up."""
        if self.release():  # Else the cloud has ended it and knows.
            with suppress(ConnectionFailed):
                self.link.post(Close(self.number))

    def release(self) -> bool:
        """Send nothing more, and hear nothing; False where the cloud server has ended it."""
        for piece in self._log.sent:
            self.link.pace.abandoned(piece.posted, piece.hidden.nbytes)
        self.link.withdraw(self.number)
        return self.link.detach(self.number)

    def refuses_resume(self, failure: SessionFailed) -> bool:
        """Whether it ended because nothing was kept of the session there: no fault of anybody's."""
        return self._resuming and failure.code in (Code.UNKNOWN_SESSION, Code.BAD_POSITION)

    def suspects(self, failure: SessionFailed) -> bool:
        """Whether the session's rows may have brought the cloud server down: some were there and not answered.

        A stage that is being started again turns everybody away; only one that has answered before has gone away.
        """
        gone = failure.code in LOSSES or (failure.code is Code.STAGE_LOST and self._answers > 0)
        return gone and self._log.oldest is not None

    def kept(self, cloud: int) -> Kept | None:
        """What can be resumed on a later connection to this server, number ``cloud``, once this one is lost."""
        welcome = self._welcome
        if not welcome.resume_token or welcome.resume_s <= 0:
            return None
        return Kept(cloud, welcome.resume_token, self.number, self._clock() + welcome.resume_s)


def _rows(tensor: Tensor) -> torch.Tensor:
    """The rows of an answer. Raises ``SessionFailed``."""
    if not tensor.packed:
        return from_bytes(tensor.dtype, tensor.shape, tensor.data)
    try:
        return unpack(tensor.dtype, tensor.shape, tensor.data)
    except ValueError as error:
        raise SessionFailed(Code.INTERNAL, f"the cloud server's rows cannot be unpacked: {error}") from None


def _fits(piece: Piece, tensors: tuple[Tensor, ...]) -> bool:
    if piece.want == 0:
        return not tensors
    name = str(piece.hidden.dtype).removeprefix("torch.")
    shape = (piece.want, piece.hidden.shape[1])
    return len(tensors) == 1 and tensors[0].shape == shape and tensors[0].dtype == name


def count(turn: Turn, took: Timing, position: int, posted: float, now: float, queue_us: int, step_us: int) -> None:
    """A wanted answer has come ``now``, the rows up to ``position`` being answered: its time is told to ``took``, and
    where it went to the ``turn``.

    Args:
        posted: when the last of what it answers was sent. Where that was before the answer before it came, the device
            took no time of its own.
        queue_us, step_us: as the cloud says; no more of them counts than there was time.
    """
    if turn.asked_at is None or (turn.prompt is None and position < turn.prompt_end):
        return
    times_us, since = (took.ttft_us, turn.asked_at) if turn.prompt is None else (took.tbt_us, turn.at)
    if len(times_us) < MAX_TIMES:
        times_us.append(min(LONGEST_US, round((now - since) * 1e6)))
    left = now - turn.at
    device_s = min(max(0.0, posted - turn.at), left)
    left -= device_s
    step_s = min(step_us / 1e6, left)
    left -= step_s
    queue_s = min(queue_us / 1e6, left)
    turn.at = now
    spent = TimeSpent(device_s, left - queue_s, queue_s, step_s)
    if turn.prompt is None:
        turn.prompt = spent
    else:
        turn.decode += spent
        turn.answers += 1
