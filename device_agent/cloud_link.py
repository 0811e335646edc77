"""The connection to one cloud server: dialled again whenever it ends, with the sessions that are attached there now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import structlog

from device_agent.bandwidth import MIN_BYTES, LinkMonitor
from device_agent.link import stay_connected
from device_agent.times import Times
from wire.connection import Role, failure_of
from wire.errors import REFUSALS, Code, ConnectionFailed, SessionFailed
from wire.frames import Frame, Tensor
from wire.limits import CLOUD_LINK
from wire.messages import Advice, CloudWelcome, DeviceHello, Drain, Failed, LinkState, Message, Result
from wire.stream import Stream, dial

log = structlog.get_logger()

LOOK_EVERY_S = 1.0
"""How often overdue answers are looked for and times are reported."""


class Attached(Protocol):
    """A session as its link sees it."""

    def answered(self, result: Result, tensors: tuple[Tensor, ...]) -> None:
        """A forward's result has come."""
        ...

    def ended(self, failure: SessionFailed) -> None:
        """The cloud server has ended the session."""
        ...

    def lost(self) -> None:
        """The connection is gone."""
        ...

    def advice(self, begin: int, sizes: Sequence[int]) -> None:
        """How to cut its rows from position ``begin`` on into chunks."""
        ...

    def look(self, now: float) -> None:
        """Called every second, to see what is overdue."""
        ...


class CloudLink:
    """One cloud server.

    Args:
        url: the cloud server, ``ws://host:port``.
        hello: who this device is and what it expects; the cloud refuses a mismatch.
        changed: called when the connection comes, goes, or begins to drain.

    Attributes:
        stream, welcome: the connection as it is now, and what the cloud server said when it last welcomed us.
        refusal: why it does not want us, where that is so.
        chunk: rows of a chunk as it advises them for any prompt; None before it has.
        times: what its answers took.
        monitor: how fast the connection is.
    """

    def __init__(self, url: str, hello: DeviceHello, changed: Callable[[CloudLink], None]) -> None:
        self.hello = hello
        self.stream: Stream | None = None
        self.welcome: CloudWelcome | None = None
        self.refusal: ConnectionFailed | None = None
        self.draining = False
        self.chunk: int | None = None
        self.times = Times()
        self.monitor = LinkMonitor()
        self._url = url.rstrip("/") + "/device"
        self._changed = changed
        self._attached: dict[int, Attached] = {}
        self._numbers = 0

    @property
    def ready(self) -> bool:
        """Whether sessions can be opened now."""
        return self.stream is not None and self.stream.failure is None and not self.draining

    @property
    def sessions(self) -> list[Attached]:
        """The sessions attached here."""
        return list(self._attached.values())

    @property
    def max_rows(self) -> int:
        """Most rows in one forward, as the cloud server said; 1 before it did."""
        welcome = self.welcome
        if welcome is None:
            return 1
        return min(welcome.max_rows, welcome.window_rows, CLOUD_LINK.rows_of(self.hello.hidden_size, self.hello.dtype))

    def attach(self, session: Attached) -> int:
        """A number for ``session`` here, never used before: what still comes for older ones concerns nobody."""
        self._numbers += 1
        self._attached[self._numbers] = session
        return self._numbers

    def detach(self, number: int) -> bool:
        """Nothing that comes for ``number`` matters any more; False when it was so already."""
        return self._attached.pop(number, None) is not None

    def post(self, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        """Send a message. Raises ``ConnectionFailed`` when the connection has ended."""
        if self.stream is None:
            raise ConnectionFailed(Code.LOST, "the connection to the cloud server was lost")
        self.stream.post(message, tensors)

    def measure(self, result: Result, posted: float, now: float, up_bytes: int, down_bytes: int) -> None:
        """Take the times of a long frame, which was posted at ``posted``, and tell the cloud server what has changed.

        Any frames: short ones measure nothing.
        """
        if self.stream is None or (up_bytes < MIN_BYTES and down_bytes < MIN_BYTES):
            return
        queue_s, step_s = result.queue_us / 1e6, result.step_us / 1e6
        self.monitor.answered(posted, now, up_bytes, down_bytes, queue_s, step_s, self.stream.rtt_s)
        if self.monitor.changed():
            with suppress(ConnectionFailed):  # Its reader sees to that.
                self.post(LinkState(*self.monitor.report()))

    async def run(self) -> None:
        """Stay connected, for ever."""

        def ended(failure: ConnectionFailed) -> None:
            self.refusal = failure if failure.code in REFUSALS else None

        await stay_connected("cloud", self._url, self._connection, ended)

    async def _connection(self) -> None:
        async with dial(self._url, Role.DEVICE, CLOUD_LINK) as stream:
            stream.post(self.hello)
            welcome = (await stream.receive()).message
            assert isinstance(welcome, CloudWelcome)
            looking = asyncio.create_task(self._look())
            try:
                self.stream, self.welcome, self.refusal, self.draining = stream, welcome, None, False
                self.chunk, self.monitor = None, LinkMonitor()
                log.info("cloud connected", url=self._url)
                self._changed(self)
                while True:
                    self._handle(await stream.receive())
            finally:
                looking.cancel()
                self.stream = None
                for session in self.sessions:
                    session.lost()
                self._changed(self)

    def _handle(self, frame: Frame) -> None:
        message = frame.message
        if isinstance(message, Result):
            session = self._attached.get(message.session)
            if session is not None:  # Else it was closed or moved while the answer was on its way.
                session.answered(message, frame.tensors)
        elif isinstance(message, Failed):
            session = self._attached.pop(message.subject, None) if message.subject is not None else None
            if session is not None:
                code, text = failure_of(message)
                session.ended(SessionFailed(code, text, retry_after_s=message.retry_after_s))
        elif isinstance(message, Advice):
            if message.session is None:
                self.chunk = max(1, message.sizes[0])
            elif message.session in self._attached:
                self._attached[message.session].advice(message.begin, message.sizes)
        elif isinstance(message, Drain):
            self.draining = True
            log.info("cloud drains", url=self._url, within_s=message.within_s)
            self._changed(self)

    async def _look(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for session in self.sessions:
                session.look(clock())
            timing = self.times.take()
            if timing is not None:
                with suppress(ConnectionFailed):
                    self.post(timing)
