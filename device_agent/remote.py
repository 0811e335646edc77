"""The cloud's layers as a submodel: the same four verbs, carried by the wire.

Rows leave as soon as the session's window allows; answers come back in order, each giving its rows back. When the
connection is lost every open session fails with ``upstream_lost`` and the link dials again by itself.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog
import torch

from device_agent.link import stay_connected
from device_agent.local import quiet
from split_model.tensor_bytes import from_bytes, to_bytes
from wire.connection import Role, failure_of
from wire.credits import Window
from wire.errors import REFUSALS, Code, ConnectionFailed, SessionFailed
from wire.frames import Frame, Tensor
from wire.limits import CLOUD_LINK
from wire.messages import Close, CloudWelcome, DeviceHello, Drain, Failed, Forward, Message, Open, Result, Truncate
from wire.stream import Stream, dial

log = structlog.get_logger()

CHECK_EVERY_S = 1.0
"""How often overdue answers are looked for."""


@dataclass
class _Asked:
    hidden: torch.Tensor
    want: int
    answer: asyncio.Future[torch.Tensor]
    at: float


class RemoteSubmodel:
    """The middle layers in the cloud.

    Args:
        url: the cloud server, ``ws://host:port``.
        hello: who this device is and what it expects; the cloud refuses a mismatch.
        reply_within_s: how long one forward may take before its session fails.
        changed: called when the connection comes or goes.
    """

    def __init__(
        self, url: str, hello: DeviceHello, reply_within_s: float, changed: Callable[[], None] = lambda: None
    ) -> None:
        self.hello = hello
        self.welcome: CloudWelcome | None = None
        self.stream: Stream | None = None
        self.refusal: ConnectionFailed | None = None
        self.draining = False
        self._url = url.rstrip("/") + "/device"
        self._reply_within_s = reply_within_s
        self._changed = changed
        self._sessions: dict[int, RemoteSession] = {}
        self._numbers = 0

    @property
    def connected(self) -> bool:
        """Whether sessions can be opened now."""
        return self.stream is not None and not self.draining

    @property
    def max_rows(self) -> int:
        """Most rows in one forward, as the cloud said."""
        welcome = self.welcome
        if welcome is None:
            return 1
        return min(welcome.max_rows, welcome.window_rows, CLOUD_LINK.rows_of(self.hello.hidden_size, self.hello.dtype))

    @property
    def max_positions(self) -> int:
        """Most positions of one session, as the cloud said; unknown before it did, and ``open`` then says why."""
        return self.welcome.max_positions if self.welcome is not None else sys.maxsize

    def open(self, positions: int) -> RemoteSession:
        """Begin a session. Raises ``SessionFailed`` when the cloud is away or stopping."""
        if self.stream is None or self.welcome is None:
            why = f": {self.refusal.message}" if self.refusal is not None else ", the device keeps trying"
            raise SessionFailed(Code.UPSTREAM_LOST, f"the cloud server cannot be reached{why}", retry_after_s=2.0)
        if self.draining:
            raise SessionFailed(Code.DRAINING, "the cloud server is stopping", retry_after_s=2.0)
        if positions > self.welcome.max_positions:
            raise SessionFailed(
                Code.TOKEN_LIMIT, f"the cloud server allows {self.welcome.max_positions} positions, not {positions}"
            )
        self._numbers += 1
        session = RemoteSession(self, self.stream, self._numbers, positions)
        session.send(Open(self._numbers, positions))
        self._sessions[self._numbers] = session
        return session

    async def run(self) -> None:
        """Stay connected, for ever."""

        def ended(failure: ConnectionFailed) -> None:
            self.refusal = failure if failure.code in REFUSALS else None

        await stay_connected("cloud", self._url, self._connection, ended)

    def forget(self, number: int) -> None:
        """A session is closed."""
        self._sessions.pop(number, None)

    async def _connection(self) -> None:
        async with dial(self._url, Role.DEVICE, CLOUD_LINK) as stream:
            stream.post(self.hello)
            welcome = (await stream.receive()).message
            assert isinstance(welcome, CloudWelcome)
            overdue = asyncio.create_task(self._watch())
            try:
                self.stream, self.welcome, self.refusal, self.draining = stream, welcome, None, False
                log.info("cloud connected", url=self._url)
                self._changed()
                while True:
                    self._handle(await stream.receive())
            finally:
                overdue.cancel()
                self.stream = None
                lost = SessionFailed(Code.UPSTREAM_LOST, "the connection to the cloud server was lost")
                for session in list(self._sessions.values()):
                    session.fail(lost)
                self._changed()

    def _handle(self, frame: Frame) -> None:
        message = frame.message
        if isinstance(message, Result):
            session = self._sessions.get(message.session)
            if session is not None:  # Else it was closed here while the answer was on its way.
                session.answered(message, frame.tensors)
        elif isinstance(message, Failed):
            session = self._sessions.get(message.subject) if message.subject is not None else None
            if session is not None:
                code, text = failure_of(message)
                session.fail(SessionFailed(code, text, retry_after_s=message.retry_after_s))
        elif isinstance(message, Drain):
            self.draining = True
            log.info("cloud drains", within_s=message.within_s)
            self._changed()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            for session in list(self._sessions.values()):
                since = session.waiting_since()
                if since is not None and loop.time() - since > self._reply_within_s:
                    session.fail(
                        SessionFailed(
                            Code.TIMEOUT, f"the cloud server did not answer within {self._reply_within_s:g} s"
                        )
                    )


class RemoteSession:
    """One session in the cloud."""

    def __init__(self, owner: RemoteSubmodel, stream: Stream, number: int, positions: int) -> None:
        assert owner.welcome is not None
        self._owner = owner
        self._stream = stream
        self._number = number
        self._positions = positions
        self._max_rows = owner.max_rows
        self._window = Window(owner.welcome.window_rows)
        self._position = 0
        self._sent_position = 0
        self._sent = 0
        self._answers = 0
        self._unsent: deque[_Asked | int] = deque()
        self._unanswered: deque[_Asked] = deque()
        self._failure: SessionFailed | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()

    @property
    def position(self) -> int:
        """Where the next row goes."""
        return self._position

    def forward(self, hidden: torch.Tensor, want: int) -> asyncio.Future[torch.Tensor]:
        """See ``SubmodelSession.forward``. Rows beyond the window wait here."""
        rows = hidden.shape[0]
        self._check_open()
        if not 0 <= want <= rows or not 0 < rows <= self._max_rows:
            raise ValueError(f"{want} of {rows} rows wanted; a forward has 1 to {self._max_rows} rows")
        if self._position + rows > self._positions:
            raise ValueError(f"position {self._position + rows} is beyond the session's {self._positions}")
        self._position += rows
        asked = _Asked(hidden, want, quiet(self._loop.create_future()), self._loop.time())
        self._unsent.append(asked)
        self._pump()
        return asked.answer

    def truncate(self, position: int) -> None:
        """See ``SubmodelSession.truncate``."""
        self._check_open()
        if not 0 <= position <= self._position:
            raise ValueError(f"cannot truncate to {position}, the session is at {self._position}")
        self._position = position
        self._unsent.append(position)
        self._pump()

    def close(self) -> None:
        """End the session here and in the cloud."""
        if self._closed:
            return
        self.fail(SessionFailed(Code.CANCELLED, "the session was closed"))
        self._closed = True
        self._owner.forget(self._number)
        with suppress(SessionFailed):
            self.send(Close(self._number))

    def send(self, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        """Post a message of this session. Raises ``SessionFailed`` when the connection has ended."""
        try:
            self._stream.post(message, tensors)
        except ConnectionFailed as failure:
            raise SessionFailed(Code.UPSTREAM_LOST, "the connection to the cloud server was lost") from failure

    def fail(self, failure: SessionFailed) -> None:
        """End every wait with ``failure``; the first one stays."""
        if self._failure is None:
            self._failure = failure
        for asked in [*self._unanswered, *(each for each in self._unsent if isinstance(each, _Asked))]:
            if not asked.answer.done():
                asked.answer.set_exception(self._failure)
        self._unanswered.clear()
        self._unsent.clear()

    def answered(self, result: Result, tensors: tuple[Tensor, ...]) -> None:
        """The cloud's answer to the oldest forward that waits."""
        if self._failure is not None:
            return
        asked = self._unanswered[0] if self._unanswered else None
        if asked is None or result.sequence != self._answers or not _fits(asked, tensors):
            self.fail(SessionFailed(Code.INTERNAL, "the cloud server's answer does not fit the question"))
            return
        rows = from_bytes(tensors[0].dtype, tensors[0].shape, tensors[0].data) if tensors else asked.hidden[:0]
        if not bool(torch.isfinite(rows).all()):
            self.fail(SessionFailed(Code.NOT_FINITE, "the cloud server's rows hold NaN or infinity"))
            return
        self._unanswered.popleft()
        self._answers += 1
        self._window.give(asked.hidden.shape[0])
        if not asked.answer.done():
            asked.answer.set_result(rows)
        try:
            self._pump()
        except SessionFailed as failure:
            self.fail(failure)

    def waiting_since(self) -> float | None:
        """When the oldest unanswered forward was asked, on the event loop's clock."""
        return self._unanswered[0].at if self._unanswered else None

    def _pump(self) -> None:
        while self._unsent:
            head = self._unsent[0]
            if isinstance(head, int):
                self.send(Truncate(self._number, head))
                self._sent_position = head
            else:
                rows = head.hidden.shape[0]
                if not self._window.take(rows):
                    return
                tensor = Tensor(*to_bytes(head.hidden))
                self.send(Forward(self._number, self._sent, self._sent_position, head.want), [tensor])
                self._sent += 1
                self._sent_position += rows
                self._unanswered.append(head)
            self._unsent.popleft()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)


def _fits(asked: _Asked, tensors: tuple[Tensor, ...]) -> bool:
    if asked.want == 0:
        return not tensors
    name = str(asked.hidden.dtype).removeprefix("torch.")
    shape = (asked.want, asked.hidden.shape[1])
    return len(tensors) == 1 and tensors[0].shape == shape and tensors[0].dtype == name
