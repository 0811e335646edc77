"""One session of a group, which any life of the group can go on with."""

from __future__ import annotations

import asyncio
from typing import Protocol

import torch

from device_agent.group.asking.asks import GroupAsk
from device_agent.group.asking.record import Record, Unanswered
from device_agent.group.messages.heads import MAX_ROWS, TruncateHead
from device_agent.planning.thresholds import counted
from device_agent.sharing.compute import quiet
from wire.errors import Code, SessionFailed


class Group(Protocol):
    """What a session asks of its group, see ``GroupSubmodel``."""

    hidden_size: int
    dtype: torch.dtype

    def enter(self, session: GroupSession) -> None: ...
    def leave(self, session: GroupSession) -> None: ...
    def make_room(self, tokens: int) -> None: ...
    def forward(self, session: GroupSession, forward: Unanswered) -> None: ...
    def fork(self, source: GroupSession, position: int) -> GroupSession: ...
    def ask(self, asked: GroupAsk) -> None: ...


class GroupSession:
    """One session. Its rows are kept here until it is closed, so that any life of the group can go on with it.

    Attributes:
        parked: whether it rests between two turns of a conversation.
        away: whether the members have forgotten it meanwhile, for others.
    """

    branching = None
    hints = None

    def __init__(self, group: Group, record: Record) -> None:
        self.record = record
        self._group = group
        self._closed = False
        self._failure: SessionFailed | None = None
        self.parked = self.away = False
        group.enter(self)

    @property
    def position(self) -> int:
        """Where the next row goes."""
        return self.record.position

    @property
    def counted(self) -> int:
        """Tokens that each member counts it as at most, see ``thresholds``."""
        return 0 if self.away else counted(self.record.reach, self.record.positions)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are kept."""
        source = self.record.source
        return self.record.history.nbytes + (0 if source is None else source.nbytes)

    def expect(self, prompt: int, expected: int) -> None:
        """See ``SubmodelSession.expect``; caches grow with the rows that come."""

    def forward(self, hidden: torch.Tensor, want: int) -> asyncio.Future[torch.Tensor]:
        """See ``SubmodelSession.forward``. Nobody may write to ``hidden`` afterwards."""
        self._check_open()
        rows = hidden.shape[0]
        if hidden.shape[1:] != (self._group.hidden_size,) or hidden.dtype != self._group.dtype:
            raise ValueError(f"rows are {hidden.dtype} {list(hidden.shape)}, not those of this group")
        if not 0 <= want <= rows or not 0 < rows <= MAX_ROWS:
            raise ValueError(f"{want} of {rows} rows wanted; a forward has 1 to {MAX_ROWS} rows")
        if self.position + rows > self.record.positions:
            raise ValueError(f"position {self.position + rows} is beyond the session's {self.record.positions}")
        answer: asyncio.Future[torch.Tensor] = quiet(asyncio.get_running_loop().create_future())
        self.parked = False
        if self._failure is None:
            try:
                self._group.make_room(counted(self.position + rows, self.record.positions) - self.counted)
            except SessionFailed as failure:
                self.fail(failure)
        if self._failure is not None:
            answer.set_exception(self._failure)
            return answer
        self._group.forward(self, self.record.forward(hidden.detach().contiguous(), want, answer))
        return answer

    def truncate(self, position: int) -> None:
        """See ``SubmodelSession.truncate``. Raises ``SessionFailed`` where the session has failed."""
        self._check_works()
        if not 0 <= position <= self.position:
            raise ValueError(f"cannot truncate to {position}, the session is at {self.position}")
        self.record.truncate(position)
        if not self.away:
            self._group.ask(GroupAsk(TruncateHead(self.record.session, position)))

    def fork(self, position: int) -> GroupSession:
        """See ``SubmodelSession.fork``. Raises ``SessionFailed`` where the session has failed."""
        self._check_works()
        history = self.record.history
        if not 0 <= position <= min(self.position, history.length):
            raise ValueError(f"cannot fork at {position}: {history.length} rows are answered, of {self.position}")
        return self._group.fork(self, position)

    def park(self) -> None:
        """See ``SubmodelSession.park``; keys and values stay where they are while the session is held."""
        self._check_works()
        if self.record.waiting:
            raise ValueError("rows are not answered yet")
        self.parked = True

    def close(self) -> None:
        """See ``SubmodelSession.close``."""
        if not self._closed:
            self._closed = True
            self._group.leave(self)
            self._end_waits(SessionFailed(Code.CANCELLED, "the session was closed"))

    def answered(self, forward: Unanswered, outputs: torch.Tensor) -> None:
        """A life has answered."""
        if self.record.answered(forward) and not forward.answer.done():
            forward.answer.set_result(outputs)

    def fail(self, failure: SessionFailed) -> None:
        """The session has ended."""
        self._failure = failure
        self._group.leave(self)
        self._end_waits(failure)

    def _end_waits(self, failure: SessionFailed) -> None:
        for each in self.record.waiting:
            if not each.answer.done():
                each.answer.set_exception(failure)

    def _check_works(self) -> None:
        """No member knows a session that has failed."""
        self._check_open()
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the session is closed")
