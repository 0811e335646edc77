"""A group of devices as a submodel: the verbs of a session, asked of whichever life of the group there is now."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

import torch

from device_agent.group.asking.asks import GroupAsk
from device_agent.group.asking.life import GroupLife
from device_agent.group.asking.reads import Reads
from device_agent.group.asking.record import MAX_LOSSES, Record, SessionHead, Unanswered
from device_agent.group.asking.session import GroupSession
from device_agent.group.holding.sights import GroupRows
from device_agent.group.messages.heads import (
    MAX_POSITIONS,
    MAX_ROWS,
    CloseHead,
    ForkHead,
    HandHead,
    MeansHead,
    RowsHead,
)
from device_agent.group.steps.handing import as_tensor
from device_agent.planning.pruning import Places
from device_agent.planning.thresholds import counted
from device_agent.sharing.compute import quiet, tell
from split_model.positions import PlacedRows
from split_model.pruning.kept import HeadSets
from split_model.sequences import Sequences
from wire.errors import Code, SessionFailed

NO_NARROW: Final = "this group shares layers in a way that leaves no heads out: try again without a limit of time"


@dataclass(frozen=True)
class Placing:
    """Which member computes how many of the KV groups that a session keeps, for as long as a life of the group: other
    members share them in another way."""

    life: GroupLife
    places: Places


class GroupSubmodel:
    """Layers on several devices. Everything belongs on one event loop.

    While the group has no life, sessions can be opened and asked: the next life begins with all of it.

    Args:
        hidden_size, dtype: of rows.
        entry: what is done to rows before the first layer, where the group has that and there is such a thing.

    Attributes:
        life: the one that there is.
        means: of each of the group's layers and heads what the context is on average, float32 ``[layers, heads,
            head_dim]``, which stands for heads that a session leaves out; None: nothing does. It is told to each life
            as it begins.
    """

    max_rows = MAX_ROWS
    hints = None

    def __init__(
        self,
        hidden_size: int,
        dtype: torch.dtype,
        entry: Callable[[torch.Tensor, PlacedRows], torch.Tensor] | None = None,
        max_positions: int = sys.maxsize,
    ) -> None:
        self.max_positions = min(max_positions, MAX_POSITIONS)
        self.hidden_size, self.dtype = hidden_size, dtype
        self._entry = entry
        self.life: GroupLife | None = None
        self.means: torch.Tensor | None = None
        self._numbers = count(1)
        self._open: dict[int, GroupSession] = {}
        self._reads = Reads(self.ask)
        self._over: str | None = None
        self._most = self._easy = sys.maxsize
        """Tokens of all sessions together that this life has room for, and before members stream more for them."""

    @property
    def connected(self) -> bool:
        """Whether sessions go on now."""
        return self.life is not None

    @property
    def ended(self) -> bool:
        """Whether sessions are refused, since no other life will follow, or nobody knows when."""
        return self._over is not None

    @property
    def reading(self) -> GroupSubmodel:
        """Whole texts are read by the same members."""
        return self

    def open(
        self,
        positions: int,
        prompt: int = 0,
        expected: int = 0,
        sets: HeadSets = (),
        placing: Placing | None = None,
    ) -> GroupSession:
        """Begin a session with room for ``positions`` positions, which computes ``sets``, one for each layer of the
        group, for as long as it lives; () all heads. None: whoever has them computes them. Raises ``SessionFailed``
        where the group has ended for good, has no room for the prompt, or cannot leave heads out."""
        if self._over is None:
            self.make_room(counted(prompt, positions))
        if sets and self.life is not None and not self.life.narrows:
            raise SessionFailed(Code.INVALID_REQUEST, NO_NARROW)
        here = placing is not None and placing.life is self.life
        return self._opened(positions, None, sets, placing.places if placing is not None and here else ())

    def open_about(self, positions: int, read: torch.Tensor) -> GroupSession:
        """See ``AttendingSubmodel.open_about``. Raises as ``open``."""
        rows = read.shape[0]
        if read.shape[1:] != (self.hidden_size,) or read.dtype != self.dtype or not 0 < rows <= MAX_ROWS:
            raise ValueError(f"a text's rows are {read.dtype} {list(read.shape)}; 1 to {MAX_ROWS} of this group can be")
        return self._opened(positions, read.detach().contiguous())

    def _opened(
        self, positions: int, source: torch.Tensor | None, sets: HeadSets = (), places: Places = ()
    ) -> GroupSession:
        if self._over is not None:
            raise SessionFailed(Code.STAGE_LOST, self._over)
        if not 0 <= positions <= self.max_positions:
            raise SessionFailed(Code.TOKEN_LIMIT, f"this group allows {self.max_positions} positions, not {positions}")
        record = Record(next(self._numbers), positions, source=source, sets=sets, places=places)
        session = GroupSession(self, record)
        self._replay(session)
        return session

    def read(self, hidden: torch.Tensor, lengths: Sequence[int]) -> asyncio.Future[torch.Tensor]:
        """See ``ReadingSubmodel.read``. A life that is lost costs a pause: the next is asked for all of it again."""
        if not lengths or min(lengths) < 1 or sum(lengths) > self.max_rows:
            raise ValueError(
                f"texts of {list(lengths)} rows; each needs one, and 1 to {self.max_rows} are read at once"
            )
        if hidden.shape != (sum(lengths), self.hidden_size) or hidden.dtype != self.dtype:
            raise ValueError(f"rows are {hidden.dtype} {list(hidden.shape)}, not these texts' in this group")
        if self._over is not None:
            answer: asyncio.Future[torch.Tensor] = quiet(asyncio.get_running_loop().create_future())
            answer.set_exception(SessionFailed(Code.STAGE_LOST, self._over))
            return answer
        rows = hidden.detach() if self._entry is None else self._entry(hidden, Sequences(lengths))
        return self._reads.ask(rows.contiguous(), lengths)

    def begin(self, life: GroupLife) -> None:
        """A life has begun: all open sessions go on there, with what was handed over to it, or replayed from the rows
        that are kept here; parked ones once they are asked."""
        self.life, self._over = life, None
        if life.resumes.before is not None:
            plan = as_tensor(life.resumes.before)
            self.ask(GroupAsk(HandHead(len(plan), next=False), plan))
        self._most, self._easy = life.most_tokens, life.easy_tokens
        if self.means is not None and life.narrows:
            self.ask(GroupAsk(MeansHead(), self.means))
        self._reads.again()
        for number in life.resumes.sessions:
            if number not in self._open:
                self.ask(GroupAsk(CloseHead(number)))
        for session in reversed(list(self._open.values())):
            try:
                self.make_room(0)
            except SessionFailed as failure:  # The youngest give way; who is away takes nothing.
                if not session.away:
                    session.fail(failure)
        for session in list(self._open.values()):
            session.record.places = ()
            if session.record.sets and not life.narrows:
                session.fail(SessionFailed(Code.INVALID_REQUEST, NO_NARROW))
            elif not session.away:
                self._goes_on(session, life.resumes.sessions.get(session.record.session))

    def _goes_on(self, session: GroupSession, had: int | None) -> None:
        """In a life that has just begun, and has so many of its positions. Nobody waits for one that is parked: where
        it has to be replayed that is done when it goes on, and not before those who wait."""
        if not session.parked or (had is not None and had >= session.record.history.length):
            self._replay(session, had)
            return
        session.away = True
        if had is not None:
            self.ask(GroupAsk(CloseHead(session.record.session)))

    def make_room(self, tokens: int) -> None:
        """Before so many more. Members forget parked sessions, the oldest first, rather than to stream more for them;
        those are replayed when they go on. Raises ``SessionFailed`` where there is too little room."""
        parked = [each for each in reversed(self._open.values()) if each.parked and not each.away]
        least = tokens + sum(each.counted for each in self._open.values() if each not in parked)
        if least > self._most:
            why = f"sessions of {least} tokens together do not fit in this group's memory"
            raise SessionFailed(Code.TOKEN_LIMIT, f"{why}, which has room for {self._most}: try again later")
        while parked and tokens + sum(each.counted for each in self._open.values()) > self._easy:
            session = parked.pop()
            session.away = True
            self.ask(GroupAsk(CloseHead(session.record.session)))

    @property
    def lengths(self) -> list[int]:
        """How many rows of each session are answered that another life may go on with as they are."""
        records = [session.record for session in self._open.values() if not session.away]
        return [record.history.length for record in records if not record.sets and record.source is None]

    @property
    def busy(self) -> bool:
        """Whether anybody waits for an answer."""
        return self._reads.waiting or any(session.record.waiting for session in self._open.values())

    def pause(self) -> None:
        """The life is over because a better one follows: nobody's rows are the reason."""
        self.life = None

    def lost(self, why: str) -> None:
        """The life is over. Sessions wait for the next, but for those that may be the reason."""
        self.life = None
        self._reads.lost(why)
        for session in list(self._open.values()):
            if session.record.waiting:
                session.record.losses += 1
                if session.record.losses >= MAX_LOSSES:
                    session.fail(SessionFailed(Code.STAGE_LOST, why))

    def end(self, why: str) -> None:
        """No life will follow, or nobody knows when: all sessions end, and the reason is said to whoever waits or opens
        another before one has begun."""
        self.life, self._over = None, why
        self._reads.end(why)
        for session in list(self._open.values()):
            session.fail(SessionFailed(Code.STAGE_LOST, why))

    def fork(self, source: GroupSession, position: int) -> GroupSession:
        """A session that begins as another one's first ``position`` rows. Raises ``SessionFailed`` where there is no
        room for it."""
        of = source.record
        self.make_room(counted(position, of.positions))
        record = Record(next(self._numbers), of.positions, position, of.history.fork(position), source=of.source)
        record.sets, record.places = of.sets, of.places
        session = GroupSession(self, record)
        if source.away:
            self._replay(session)
        else:
            self.ask(GroupAsk(ForkHead(record.session, of.session, position, record.positions)))
        return session

    def ask(self, asked: GroupAsk) -> None:
        """Ask the life that there is; where there is none, the next learns it from the records."""
        if self.life is not None:
            self.life.put(asked)

    def forward(self, session: GroupSession, forward: Unanswered) -> None:
        """Ask for new rows of a session."""
        if session.away:
            session.away = False
            self._replay(session)
        elif self.life is not None:
            head = RowsHead(session.record.session, forward.position, len(forward.hidden), forward.want)
            self._send(session, head, forward.hidden, forward)

    def enter(self, session: GroupSession) -> None:
        """A session is open."""
        self._open[session.record.session] = session

    def leave(self, session: GroupSession) -> None:
        """A session is closed, or has failed."""
        if self._open.pop(session.record.session, None) is not None and not session.away:
            self.ask(GroupAsk(CloseHead(session.record.session)))

    def _replay(self, session: GroupSession, had: int | None = None) -> None:
        """To a life that has so many of its positions; None: that knows nothing of it."""
        for head, hidden, forward in session.record.again(had):
            self._send(session, head, hidden, forward)

    def _send(
        self,
        session: GroupSession,
        head: SessionHead,
        hidden: torch.Tensor | None,
        forward: Unanswered | None,
    ) -> None:
        if hidden is not None and self._entry is not None and isinstance(head, RowsHead):
            hidden = self._entry(hidden, GroupRows(head.position, head.rows))
        loop = asyncio.get_running_loop()

        def deliver(outputs: torch.Tensor) -> None:
            if forward is not None:
                tell(loop, session.answered, forward, outputs)

        self.ask(GroupAsk(head, hidden, deliver if forward is not None else None))
