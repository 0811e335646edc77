"""A session's place at one cloud server: what may be sent there, and whether what comes back answers it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

import torch

from device_agent.chunking import DEFAULT_CHUNK
from device_agent.cloud_link import Attached, CloudLink
from device_agent.recovery import LOSSES
from device_agent.row_bytes import finite
from device_agent.session_log import Chosen, Piece, SessionLog
from split_model.packed_rows import shortest, unpack
from split_model.tensor_bytes import from_bytes
from wire.credits import Window
from wire.errors import Code, ConnectionFailed, SessionFailed
from wire.frames import Tensor
from wire.messages import Close, CloudWelcome, Forward, Keep, Result, Truncate


@dataclass(frozen=True)
class Kept:
    """A place that was lost with its connection and is kept by the cloud server until ``until``."""

    link: CloudLink
    token: str
    number: int
    until: float


class Place:
    """One attachment of a session, under a number of its own.

    Args:
        link: the cloud server, which is ready.
        session: who is told what comes.
        log: what has been asked; ``begin`` says what of it is there already.
        resuming: whether that is more than nothing.

    Attributes:
        quiet_since: when the cloud server last answered, or had nothing to answer.
    """

    def __init__(self, link: CloudLink, session: Attached, log: SessionLog, resuming: bool) -> None:
        assert isinstance(link.welcome, CloudWelcome)
        self.link = link
        self.number = link.attach(session)
        self.quiet_since = 0.0
        self.resuming = resuming
        self._welcome = link.welcome
        self._log = log
        self._window = Window(link.welcome.window_rows)
        self._most = link.max_rows
        self._most_of_history = link.chunk or DEFAULT_CHUNK
        self._sent = self._answers = 0
        self._clock = asyncio.get_running_loop().time

    def pump(self) -> None:
        """Send what the window has room for, and the link. Raises ``ConnectionFailed``."""
        link, window, rows = self.link, self._window, self._log
        while True:
            crowded, room = link.crowded, window.limit - window.in_flight
            if crowded:  # Short frames of new rows always go: they are somebody's next token.
                room = 0 if rows.replaying else min(room, link.short_rows)
            idle = rows.oldest is None
            each = rows.next(self._most, room, self._most_of_history)
            if each is None:
                if crowded and rows.unsent:
                    link.hold(self.number)
                return
            if isinstance(each, int):
                link.post(Truncate(self.number, each))
                continue
            if isinstance(each, Chosen):
                link.post(Keep(self.number, list(each.nodes)))
                continue
            tensor = Tensor(*shortest(each.hidden, link.packs(each.hidden.nbytes)))
            now = each.posted = self._clock()
            if idle:
                self.quiet_since = now
            window.take(each.hidden.shape[0])
            link.monitor.sent(now, each.hidden.nbytes)
            self._sent += 1
            parents = None if each.parents is None else [parent + 1 for parent in each.parents]
            link.post(Forward(self.number, self._sent - 1, each.position, each.want, parents), [tensor])
            each.mark = link.posted_bytes

    def answered(self, result: Result, tensors: tuple[Tensor, ...]) -> tuple[Piece, torch.Tensor | None]:
        """The oldest piece that was sent, which this answers, and its rows.

        Raises:
            SessionFailed: the answer does not fit it, or its rows are not finite.
        """
        piece = self._log.oldest
        if piece is None or result.sequence != self._answers or not _fits(piece, tensors):
            raise SessionFailed(Code.INTERNAL, "the cloud server's answer does not fit the question")
        rows = _rows(tensors[0]) if tensors else None
        if rows is not None and not finite(rows):
            raise SessionFailed(Code.NOT_FINITE, "the cloud server's rows hold NaN or infinity")
        now = self.quiet_since = self._clock()
        self.link.measure(result, piece.posted, now, piece.hidden.nbytes, 0 if rows is None else rows.nbytes)
        self._answers += 1
        self._window.give(piece.hidden.shape[0])
        self._log.answered()
        self.resuming = False
        return piece, rows

    def overdue(self, now: float, within_s: float) -> bool:
        """Whether the cloud server has had rows for longer than ``within_s`` seconds and has answered nothing."""
        oldest = self._log.oldest
        if oldest is None:
            return False
        if not self.link.has_left(oldest.mark):
            self.quiet_since = now
        return now - self.quiet_since > within_s

    def suspect(self, failure: SessionFailed) -> bool:
        """Whether the session's rows may have brought the cloud server down: some were there and not answered.

        A stage that is being started again turns everybody away; only one that has answered before has gone away.
        """
        gone = failure.code in LOSSES or (failure.code is Code.STAGE_LOST and self._answers > 0)
        return gone and self._log.oldest is not None

    def lost(self) -> Kept | None:
        """The connection is gone. What can be resumed on a later one, if anything."""
        self.link.detach(self.number)
        welcome = self._welcome
        if not welcome.resume_token or welcome.resume_s <= 0:
            return None
        return Kept(self.link, welcome.resume_token, self.number, self._clock() + welcome.resume_s)

    def leave(self) -> None:
        """Give it up."""
        for piece in self._log.sent:
            self.link.monitor.abandoned(piece.posted, piece.hidden.nbytes)
        if self.link.detach(self.number):  # Else the cloud has ended it and knows.
            with suppress(ConnectionFailed):
                self.link.post(Close(self.number))


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
