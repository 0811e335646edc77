"""The connection to one cloud server: dialled again whenever it ends, with the sessions that are attached there now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import structlog

from device_agent.bandwidth import ALPHA, SHORT_BYTES, THRESHOLD, LinkMonitor
from device_agent.link import stay_connected
from device_agent.times import Times
from wire.connection import Role, failure_of
from wire.errors import REFUSALS, Code, ConnectionFailed, SessionFailed
from wire.frames import Frame, Tensor
from wire.limits import CLOUD_LINK, ITEM_BYTES, MAX_QUEUED_BYTES, PACK_BELOW_BYTES_S, PACK_BYTES
from wire.messages import Advice, CloudWelcome, DeviceHello, Drain, Failed, LinkState, Message, Result
from wire.stream import Stream, dial

log = structlog.get_logger()

LOOK_EVERY_S = 1.0
"""How often overdue answers are looked for and times are reported."""

CROWDED_BYTES = MAX_QUEUED_BYTES // 16
"""Bytes waiting to be sent at which long frames wait with their sessions: enough to keep a fast link busy, far from
what ends a connection, and no decode row waits long behind them."""

ROOM_EVERY_S = 0.005
"""How often is looked whether there is room again."""

UNPACK_ABOVE = 2.0
"""Rows go unpacked again where the link seems so many times as fast as where packing begins."""


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

    def room(self) -> None:
        """The link has room again for what was held."""
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
        may_pack: whether rows may be packed.

    Attributes:
        stream, welcome: the connection as it is now, and what the cloud server said when it last welcomed us.
        refusal: why it does not want us, where that is so.
        chunk: rows of a chunk as it advises them for any prompt; None before it has.
        short_rows: rows of a frame that is short enough to be sent always.
        posted_bytes: bytes that ``stream`` has sent, at least, once all that was posted has left.
        times: what its answers took.
        monitor: how fast the connection is.
        step_s: a moving mean of its steps' seconds, as far as they had short frames of ours; None before the first.
        draft_us: microseconds of a step of drafting here, which the cloud server is told; 0: nothing is drafted.
    """

    def __init__(self, url: str, hello: DeviceHello, changed: Callable[[], None], may_pack: bool = True) -> None:
        self.hello = hello
        self.stream: Stream | None = None
        self.welcome: CloudWelcome | None = None
        self.refusal: ConnectionFailed | None = None
        self.draining = False
        self.chunk: int | None = None
        row_bytes = hello.hidden_size * ITEM_BYTES[hello.dtype]
        self.short_rows = max(1, SHORT_BYTES // row_bytes)
        self.posted_bytes = 0
        self.times = Times()
        self.monitor = LinkMonitor(max(SHORT_BYTES, row_bytes))
        self.step_s: float | None = None
        self.draft_us = 0
        self._draft_reported_us = 0
        self._url = url.rstrip("/") + "/device"
        self._changed = changed
        self._may_pack = may_pack
        self._packing = True
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
    def crowded(self) -> bool:
        """Whether so much waits to be sent that long frames had better wait where they are."""
        return self.stream is not None and self.posted_bytes - self.stream.sent_bytes >= CROWDED_BYTES

    def has_left(self, mark: int) -> bool:
        """Whether a frame has been sent, ``mark`` being what ``posted_bytes`` was when it was posted."""
        return self.stream is None or self.stream.sent_bytes >= mark

    def packs(self, length: int) -> bool:
        """Whether rows of so many bytes had better be packed: where the link is slower than packing and unpacking are.

        What the bandwidth is measured by are the rows' own bytes, so it seems higher where they are packed: that is no
        reason to stop. While it is not known, those are packed that measure it.
        """
        up_bytes_s = self.monitor.up_bytes_s
        if not self._may_pack or length < PACK_BYTES:
            return False
        if up_bytes_s is None:
            return length > self.monitor.short_bytes
        self._packing = up_bytes_s < (UNPACK_ABOVE if self._packing else 1.0) * PACK_BELOW_BYTES_S
        return self._packing

    def takes(self, position: int, undivided: int = 0) -> bool:
        """Whether a session that has come to ``position`` can be attached here now, and ``undivided`` rows of it go in
        one frame."""
        welcome = self.welcome
        return self.ready and welcome is not None and welcome.max_positions >= position and self.max_rows >= undivided

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

    def post(self, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        """Send a message. Raises ``ConnectionFailed`` when the connection has ended."""
        if self.stream is None:
            raise ConnectionFailed(Code.LOST, "the connection to the cloud server was lost")
        self.stream.post(message, tensors)
        self.posted_bytes = max(self.posted_bytes, self.stream.sent_bytes) + sum(len(each.data) for each in tensors)

    def measure(self, result: Result, posted: float, now: float, up_bytes: int, down_bytes: int) -> None:
        """Take the times of a frame, which was posted at ``posted``, and tell the cloud server what has changed.

        Short ones measure its steps and the round trip, long ones the bandwidth.
        """
        queue_s, step_s = result.queue_us / 1e6, result.step_us / 1e6
        short_bytes = self.monitor.short_bytes
        if up_bytes <= short_bytes:
            self.step_s = step_s if self.step_s is None else ALPHA * self.step_s + (1 - ALPHA) * step_s
            rtt_s = self.stream.rtt_s if self.stream is not None else None
            self.monitor.short_answered(posted, now, queue_s, step_s, rtt_s)
        if self.stream is None or (up_bytes <= short_bytes and down_bytes <= short_bytes):
            return
        self.monitor.answered(posted, now, up_bytes, down_bytes, queue_s, step_s, self.stream.rtt_s)
        if self.monitor.changed():
            self._report()

    def _report(self) -> None:
        self._draft_reported_us = self.draft_us
        with suppress(ConnectionFailed):  # Its reader sees to that.
            self.post(LinkState(*self.monitor.report(), self.draft_us))

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
            if not (welcome.max_rows and welcome.window_rows):
                raise ConnectionFailed(Code.UNEXPECTED_MESSAGE, "the cloud server says that it takes no rows at all")
            self.stream, self.welcome, self.refusal, self.draining = stream, welcome, None, False
            self.chunk, self.monitor, self.posted_bytes = None, LinkMonitor(self.monitor.short_bytes), 0
            self.step_s, self._draft_reported_us, self._packing = None, 0, True
            tasks = [asyncio.create_task(work) for work in (self._read(stream), self._look(), self._make_room())]
            try:
                log.info("cloud connected", url=self._url)
                self._changed()
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
                self._changed()
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
            self._changed()

    async def _look(self) -> None:
        clock = asyncio.get_running_loop().time
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                for session in self.sessions:
                    session.look(clock())
                if abs(self.draft_us - self._draft_reported_us) > THRESHOLD * self._draft_reported_us:
                    self._report()
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
                        self._attached[number].room()
            self._holding.clear()
