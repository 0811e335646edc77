"""A connection on a real websocket: the one asyncio shell around the state machine.

    async with dial("ws://…/device", Role.DEVICE, CLOUD_LINK) as stream:
        stream.post(DeviceHello(...))
        welcome = await stream.receive()

``post`` never blocks: those of one session or request leave in the order they were posted, a long one in parts between
which others pass, each within a deadline. Three tasks live as long as the stream: reader, writer, clock. The first to
end ends the others, and whoever waits in ``receive`` learns why.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager, suppress

from starlette.websockets import WebSocket

from wire.connection import Connection, Role
from wire.dialled import CLOSE_SILENT_S, CLOSE_WITHIN_S, dialled
from wire.errors import Code, ConnectionFailed, Crowded
from wire.frames import Frame, Tensor
from wire.limits import MAX_QUEUED_BYTES, SEND_WITHIN_S, SLOWEST_BYTES_S, LinkLimits
from wire.messages import AnyMessage, subject_of
from wire.outbox import Outbox, Outgoing
from wire.transports import AcceptedTransport, LibraryTransport, Transport, TransportClosed

MAX_REASON_BYTES = 120

MAX_UNREAD = 256
"""Frames received and not yet taken by the application; the socket is not read beyond that."""

MAX_UNREAD_BYTES = MAX_QUEUED_BYTES
"""Bytes of the tensors of those, or a little more: as many as a peer has waiting to be sent, at most."""


class Stream:
    """Typed messages over one websocket.

    Attributes:
        sent_bytes, received_bytes: bytes of all frames so far, without the websocket's own few.
    """

    def __init__(self, transport: Transport, connection: Connection) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self._out = Outbox()
        self._less = asyncio.Event()
        """Set for a moment when something has left, or the connection has ended."""
        self._transport = transport
        self._connection = connection
        self._clock = asyncio.get_running_loop().time
        self._out_ready = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._send_by: float | None = None
        self._in: asyncio.Queue[Frame | None] = asyncio.Queue(MAX_UNREAD)
        self._unread_bytes = 0
        self._taken = asyncio.Event()
        """Set when the application has taken a frame."""
        self._tasks = [asyncio.create_task(work) for work in (self._read(), self._write(), self._keep_time())]

    @property
    def rtt_s(self) -> float | None:
        """The last round trip that is known, in seconds, see ``Connection``."""
        return self._connection.rtt_s

    @property
    def failure(self) -> ConnectionFailed | None:
        """Why the connection ended, None while it lives."""
        return self._connection.failure

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to leave."""
        return self._out.short_bytes + self._out.long_bytes

    def post(
        self,
        message: AnyMessage,
        tensors: Sequence[Tensor] = (),
        party: Hashable = None,
        left: Callable[[], None] | None = None,
    ) -> Outgoing:
        """Queue a message.

        Args:
            party: whose request it is: what may wait of a party is bounded, and its long messages share one turn;
                None: bounded only with all others.
            left: called when the last of it leaves.

        Raises:
            Crowded: it is long, and too much that is long waits already.
            ConnectionFailed: the connection has ended, or so much that is short waits that the peer does not read.
            LocalMistake: the protocol does not allow this message now, or it is over the limits.
        """
        if self._connection.failure is not None:
            raise self._connection.failure
        data = self._connection.frame(message, tensors, self._clock())
        entry = Outgoing(data, subject_of(message), party, left)
        if not self._out.takes(entry.size, party):
            raise Crowded
        self._queue(entry)
        return entry

    def takes(self, size: int, party: Hashable) -> bool:
        """Whether a message of so many bytes, of ``party``, would not be refused as ``Crowded`` now."""
        return self._out.takes(size, party)

    async def headroom(self, size: int, party: Hashable) -> None:
        """Wait until the link ``takes`` that. Who came first is told first.

        Raises:
            ConnectionFailed: the connection has ended.
        """
        while self.failure is None and not self._out.takes(size, party):
            await self._less.wait()
        if self.failure is not None:
            raise self.failure

    def withdraw(self, subject: int) -> bool:
        """Take back what is long, and what was posted behind it, of a session or request that nobody waits for any
        more. True when a message of it will never be there."""
        withdrawn = self._out.withdraw(subject)
        if withdrawn:
            self._out_ready.set()  # The peer may have to be told.
            self._look()
        return withdrawn

    def fail(self, failure: ConnectionFailed) -> None:
        """End the connection from elsewhere than where it is received; the peer is told."""
        self._connection.fail(failure)
        self._stop()

    async def receive(self) -> Frame:
        """The next frame for the application.

        Raises:
            ConnectionFailed: the connection has ended; why.
        """
        frame = await self._in.get()
        if frame is None:
            self._stop()  # Every later call ends the same way.
            raise self._connection.failure or ConnectionFailed(Code.LOST, "the connection is closed")
        self._unread_bytes -= _tensor_bytes(frame)
        self._taken.set()
        return frame

    async def close(self) -> None:
        """Tell the peer why the connection has failed, if it has, and close. Safe to call twice."""
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        failure = self._connection.failure
        farewell = self._connection.farewell()
        silent = failure is not None and failure.code is Code.TIMEOUT
        within_s = CLOSE_SILENT_S if silent else CLOSE_WITHIN_S
        with suppress(TimeoutError, asyncio.TimeoutError):
            if failure is None:
                await asyncio.wait_for(self._flushed.wait(), CLOSE_WITHIN_S)
        for task in tasks:
            task.cancel()
        with suppress(TransportClosed, TimeoutError, asyncio.TimeoutError):
            if farewell is not None:
                await asyncio.wait_for(self._transport.send(farewell), within_s)
        await asyncio.gather(*tasks, return_exceptions=True)
        if failure is None:
            self._connection.fail(ConnectionFailed(Code.LOST, "the connection is closed"))
        code, reason = (1000, "") if failure is None else (failure.close_code, failure.message)
        with suppress(TransportClosed, TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(self._transport.close(code, _short(reason)), within_s)
        self._stop()

    def _queue(self, entry: Outgoing) -> None:
        if entry.is_short and self._out.short_bytes + entry.size > MAX_QUEUED_BYTES:
            failure = ConnectionFailed(Code.TIMEOUT, f"{MAX_QUEUED_BYTES // 2**20} MiB wait: the peer does not read")
            self.fail(failure)
            raise failure
        self._out.put(entry)
        self._flushed.clear()
        self._out_ready.set()

    async def _read(self) -> None:
        try:
            while True:
                data = await self._transport.receive()
                self.received_bytes += len(data)
                frame = self._connection.receive(data, self._clock())
                if self._connection.failure is not None:
                    break
                if frame is not None:
                    self._unread_bytes += _tensor_bytes(frame)
                    await self._in.put(frame)
                    while self._unread_bytes > MAX_UNREAD_BYTES:
                        self._taken.clear()
                        await self._taken.wait()
        except TransportClosed as closed:
            self._connection.fail(ConnectionFailed(Code.LOST, closed.reason))
        self._stop()

    async def _write(self) -> None:
        while True:
            await self._out_ready.wait()
            self._out_ready.clear()
            while (taken := self._out.take()) is not None:
                data, done = taken
                now = self._clock()
                self._connection.leaves(data, now)
                self._send_by = now + SEND_WITHIN_S + len(data) / SLOWEST_BYTES_S
                if done is not None and done.left is not None:
                    done.left()  # Before an answer to it can come.
                try:
                    await self._transport.send(data)
                except TransportClosed as closed:
                    self._connection.fail(ConnectionFailed(Code.LOST, closed.reason))
                    return self._stop()
                self._send_by = None
                self.sent_bytes += len(data)
                if done is not None:
                    done.has_left = True
                self._look()
            self._flushed.set()

    async def _keep_time(self) -> None:
        while self._connection.failure is None:
            wait_s = min(self._connection.deadline() - self._clock(), SEND_WITHIN_S / 4)
            await asyncio.sleep(max(0.0, wait_s))
            now = self._clock()
            if self._send_by is not None and now >= self._send_by:
                # One clock watches all sends: a timer for each would cost more than the send of a decode row.
                self._connection.fail(
                    ConnectionFailed(Code.TIMEOUT, "a message did not leave in time: the peer does not read")
                )
            heartbeat = self._connection.tick(now)
            if heartbeat is not None:
                with suppress(ConnectionFailed):
                    self._queue(Outgoing(heartbeat, None))
        self._stop()

    def _stop(self) -> None:
        """Wake whoever receives or waits for room; the owner of the stream then closes it."""
        self._look()
        while True:
            try:
                return self._in.put_nowait(None)
            except asyncio.QueueFull:
                self._in.get_nowait()  # The connection is over: what was not taken in time is not missed.

    def _look(self) -> None:
        """Have those who wait for headroom look again."""
        self._less.set()
        self._less.clear()


def _tensor_bytes(frame: Frame) -> int:
    return sum(len(each.data) for each in frame.tensors)


def _short(reason: str) -> str:
    """What of ``reason`` fits the 123 bytes of a close frame."""
    return reason.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore")


@asynccontextmanager
async def running(transport: Transport, role: Role, limits: LinkLimits) -> AsyncIterator[Stream]:
    """A stream over a websocket that is there; closed on the way out, as ``accept`` does."""
    stream = Stream(transport, Connection(role, limits, asyncio.get_running_loop().time()))
    try:
        yield stream
    except ConnectionFailed as failure:
        stream.fail(failure)
        raise
    finally:
        await asyncio.shield(stream.close())


@asynccontextmanager
async def accept(websocket: WebSocket, role: Role, limits: LinkLimits) -> AsyncIterator[Stream]:
    """Accept a websocket that a peer has dialled; closed on the way out, whatever happened.

    A ``ConnectionFailed`` that leaves the block is told to the peer before it goes on.
    """
    await websocket.accept()
    async with running(AcceptedTransport(websocket), role, limits) as stream:
        yield stream


@asynccontextmanager
async def dial(
    url: str, role: Role, limits: LinkLimits, context: ssl.SSLContext | None = None
) -> AsyncIterator[Stream]:
    """Connect to a peer.

    context: of ``wss://``; None: the system's CAs are trusted.

    Raises:
        ConnectionFailed: ``lost`` with what went wrong and what to look at, when nobody answers at ``url``.
    """
    websocket = await dialled(url, context)
    async with running(LibraryTransport(websocket), role, limits) as stream:
        yield stream
