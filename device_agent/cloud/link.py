"""The connection to one cloud server: dialled again whenever it ends, with the sessions that are attached there now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import structlog
import torch

from device_agent.cloud.bandwidth import SHORT_BYTES
from device_agent.cloud.times import LinkPace, Times
from device_agent.redial import stay_connected
from service.sparing_log import SparingLog
from split_model.packed_rows import shortest
from wire.connection import Role, failure_of
from wire.errors import REFUSALS, Code, ConnectionFailed, SessionFailed
from wire.frames import Frame, Tensor
from wire.limits import CLOUD_LINK, ITEM_BYTES, MAX_QUEUED_BYTES
from wire.message import Drain, Failed
from wire.messages import AnyMessage
from wire.outbox import Outgoing
from wire.session_messages import Advice, CloudWelcome, DeviceHello, Forward, Result
from wire.stream import Stream, dial

log = structlog.get_logger()
often = SparingLog()

LOOK_EVERY_S = 1.0
"""How often overdue answers are looked for and times are reported."""

CROWDED_BYTES = MAX_QUEUED_BYTES // 16
"""Bytes waiting to be sent at which long frames wait with their sessions: enough to keep a fast link busy, and far from
where they are refused."""

ROOM_EVERY_S = 0.005
"""How often is looked whether there is room again."""


class Attached(Protocol):
    """A session's place at a cloud server, as its link sees it."""

    def answered(self, result: Result, tensors: tuple[Tensor, ...]) -> None:
        """A forward's result has come."""

    def advised(self, begin: int, sizes: Sequence[int]) -> None:
        """How to cut its rows from position ``begin`` on into chunks."""

    def ended(self, failure: SessionFailed) -> None:
        """The cloud server has ended the session, or is to be left."""

    def lost(self) -> None:
        """The connection is gone."""

    def pump(self) -> None:
        """The link has room again for what was held."""

    def look(self, now: float) -> None:
        """Called every second, to see what is overdue."""


class CloudLink:
    """One cloud server.

    Args:
        url: the cloud server, ``ws://host:port``.
        hello: who this device is and what it expects; the cloud refuses a mismatch.
        news: set when the connection comes, goes, or begins to drain.
        may_pack: whether rows may be packed.

    Attributes:
        stream, welcome: the connection as it is now, and what the cloud server said when it last welcomed us.
        refusal: why it does not want us, where that is so.
        chunk, first_chunk: rows of a chunk as it advises them for any prompt, and most of a first one; None before it
            has.
        short_rows: rows of a frame that is short enough to be sent always.
        times: what its answers took.
        pace: how fast it is, since it was last connected.
        draft_us: microseconds of a step of drafting here, which the cloud server is told; 0: nothing is drafted.
    """

    def __init__(self, url: str, hello: DeviceHello, news: asyncio.Event, may_pack: bool = True) -> None:
        self.hello = hello
        self.stream: Stream | None = None
        self.welcome: CloudWelcome | None = None
        self.refusal: ConnectionFailed | None = None
        self.draining = False
        self.chunk: int | None = None
        self.first_chunk: int | None = None
        row_bytes = hello.hidden_size * ITEM_BYTES[hello.dtype]
        self.short_rows = max(1, SHORT_BYTES // row_bytes)
        self.times = Times()
        self._new_pace = partial(LinkPace, row_bytes, may_pack)
        self.pace = self._new_pace()
        self.draft_us = 0
        self._url = url.rstrip("/") + "/device"
        self._news = news
        self._attached: dict[int, Attached] = {}
        self._numbers = 0
        self._held: dict[int, None] = {}
        """Sessions that wait for room, in the order in which they get it."""
        self._holding = asyncio.Event()

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

    @property
    def rtt_s(self) -> float | None:
        """Round trip of a frame without length as it was measured last; None where it never was."""
        return self.stream.rtt_s if self.stream is not None else None

    @property
    def crowded(self) -> bool:
        """Whether so much waits to be sent that long frames had better wait where they are."""
        return self.stream is not None and self.stream.queued_bytes >= CROWDED_BYTES

    def takes(self, position: int) -> bool:
        """Whether a session that has come to ``position`` can be attached here now."""
        welcome = self.welcome
        return self.ready and welcome is not None and welcome.max_positions >= position

    def hold(self, number: int) -> None:
        """Tell session ``number`` when there is room again."""
        self._held[number] = None
        self._holding.set()

    def attach(self, session: Attached) -> int:
        """A number for ``session`` here, never used before: what still comes for older ones concerns nobody."""
        self._numbers += 1
        self._attached[self._numbers] = session
        return self._numbers

    def detach(self, number: int) -> bool:
        """Nothing that comes for ``number`` matters any more; False when it was so already."""
        return self._attached.pop(number, None) is not None

    def post(
        self, message: AnyMessage, tensors: Sequence[Tensor] = (), left: Callable[[], None] | None = None
    ) -> Outgoing:
        """Send a message, see ``Stream.post``. Raises ``ConnectionFailed`` when the connection has ended."""
        if self.stream is None:
            raise ConnectionFailed(Code.LOST, "the connection to the cloud server was lost")
        return self.stream.post(message, tensors, left=left)

    def forward(self, message: Forward, hidden: torch.Tensor, now: float) -> Outgoing:
        """Send rows ``hidden``, packed where that is better. Raises like ``post``."""
        length, pace = hidden.nbytes, self.pace

        def left() -> None:
            # Frames of several sessions take turns: the link was free for the next when the last of this one had left.
            if message.session in self._attached:
                pace.sent(now, length)

        return self.post(message, [Tensor(*shortest(hidden, pace.packs(length)))], left)

    def withdraw(self, number: int) -> None:
        """Take back what has not left of a session that is given up."""
        if self.stream is not None:
            self.stream.withdraw(number)

    def _tell(self) -> None:
        """Tell the cloud server how fast it is, where that has changed."""
        news = self.pace.news(self.draft_us)
        if news is not None:
            with suppress(ConnectionFailed):  # Its reader sees to that.
                self.post(news)

    async def run(self) -> None:
        """Stay connected, for ever."""
        await stay_connected("cloud", self._url, self._once)

    async def _once(self) -> None:
        try:
            await self._connection()
        except ConnectionFailed as failure:
            self.refusal = failure if failure.code in REFUSALS else None
            raise

    async def _connection(self) -> None:
        async with dial(self._url, Role.DEVICE, CLOUD_LINK) as stream:
            stream.post(self.hello)
            welcome = (await stream.receive()).message
            assert isinstance(welcome, CloudWelcome)
            if not (welcome.max_rows and welcome.window_rows):
                raise ConnectionFailed(Code.UNEXPECTED_MESSAGE, "the cloud server says that it takes no rows at all")
            self.stream, self.welcome, self.refusal, self.draining = stream, welcome, None, False
            self.chunk, self.first_chunk, self.pace = None, None, self._new_pace()
            tasks = [asyncio.create_task(work) for work in (self._read(stream), self._look(), self._make_room())]
            try:
                often.info("cloud connected", url=self._url)
                self._news.set()
                ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                self.stream = None
                self._held.clear()
                for session in self.sessions:
                    session.lost()
                self._news.set()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, stream: Stream) -> None:
        while True:
            self._handle(await stream.receive())

    def _handle(self, frame: Frame) -> None:
        message = frame.message
        if isinstance(message, Result):
            session = self._attached.get(message.session)
            if session is not None:  # Else it was closed or moved while the answer was on its way.
                session.answered(message, frame.tensors)
                if self.pace.changed:
                    self._tell()
        elif isinstance(message, Failed):
            session = self._attached.pop(message.subject, None) if message.subject is not None else None
            if session is not None:
                code, text = failure_of(message)
                session.ended(SessionFailed(code, text, retry_after_s=message.retry_after_s))
        elif isinstance(message, Advice):
            if message.session is None:
                self.chunk = max(1, message.sizes[0])
                self.first_chunk = max(1, message.sizes[1]) if len(message.sizes) > 1 else None
            elif message.session in self._attached:
                self._attached[message.session].advised(message.begin, message.sizes)
        elif isinstance(message, Drain):
            self.draining = True
            often.info("cloud drains", url=self._url, within_s=message.within_s)
            self._news.set()

    async def _look(self) -> None:
        clock = asyncio.get_running_loop().time
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                for session in self.sessions:
                    session.look(clock())
                self._tell()
                timing = self.times.take()
                if timing is not None:
                    with suppress(ConnectionFailed):
                        self.post(timing)
        except Exception as error:  # Whoever would wait for ever without it must learn of it.
            log.exception("bug in looking after the sessions of a connection")
            raise ConnectionFailed(Code.INTERNAL, "the device cannot look after its sessions") from error

    async def _make_room(self) -> None:
        while True:
            await self._holding.wait()
            while self._held:
                await asyncio.sleep(ROOM_EVERY_S)
                while self._held and not self.crowded:
                    number = next(iter(self._held))
                    del self._held[number]
                    if number in self._attached:
                        self._attached[number].pump()
            self._holding.clear()
