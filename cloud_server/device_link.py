"""One connected device: its frames become work for the engine, the engine's answers become frames."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter

import structlog

from cloud_server.device_rows import DeviceRows
from cloud_server.engine.engine import Engine
from cloud_server.engine.session import Answered
from cloud_server.engine.shares import tenant_of
from cloud_server.errands import Errands
from cloud_server.schedule.chunk_advice import Advising
from cloud_server.schedule.chunk_model import Conditions
from wire.errand import Errand
from wire.errors import Code, ConnectionFailed, Crowded, SessionFailed
from wire.frames import Frame, Tensor
from wire.message import Failed
from wire.messages import AnyMessage
from wire.observed_messages import CloudFigures, CloudState
from wire.session_messages import (
    Advice,
    Close,
    DeviceHello,
    Fork,
    Forward,
    Keep,
    LinkState,
    Open,
    Park,
    Result,
    Resume,
    Timing,
    Truncate,
)
from wire.stream import Stream

log = structlog.get_logger()

REMEMBERED_ENDS = 256
"""Ended sessions of a device that are remembered: frames still on their way to them are no news."""

TIMINGS = 4
"""Reports of times of one device that are counted between two looks; devices send one a second."""

TURN_S = 0.002
"""After so many seconds of work for devices, whatever else waits for the event loop has its turn."""


class DeviceLink:
    """Serves one device on one stream.

    Args:
        connection: number of this connection; with a session's own number it names the session.
        hello: how the device has introduced itself.
        tokens: the connections that may be resumed, by what their devices were told.
        errands: what its sessions work for.

    Attributes:
        name: the device's name, for people.
        tenant: whose its sessions and its connection are.
        measured: what the device has last told of its link.
        takes_state: whether the device wants to be told the server's load.
    """

    def __init__(
        self,
        connection: int,
        hello: DeviceHello,
        stream: Stream,
        engine: Engine,
        tokens: Mapping[str, int],
        errands: Errands,
    ) -> None:
        self.connection = connection
        self.name = hello.name
        self.stream = stream
        self.measured = LinkState(0, 0)
        self.tenant = tenant_of(hello.credential, hello.name)
        self._engine = engine
        self._sessions = engine.sessions
        self._metrics = engine.metrics
        self._tokens = tokens
        self._errands = errands
        self._rows = DeviceRows(engine.identity)
        self._advising = Advising()
        self._bytes = (0, 0)
        self._timings_left = TIMINGS
        self._ended: dict[int, None] = {}
        self.takes_state = hello.takes_state
        self._told: CloudFigures | None = None

    def count_bytes(self) -> None:
        """Count what went over its connection since the last call."""
        received, sent = self._bytes
        self._bytes = self.stream.received_bytes, self.stream.sent_bytes
        self._metrics.received_bytes.inc(self._bytes[0] - received)
        self._metrics.sent_bytes.inc(self._bytes[1] - sent)

    def tell(self, figures: CloudFigures) -> None:
        """Tell the device the server's load, where that has changed."""
        if figures != self._told:
            self._told = figures
            with suppress(ConnectionFailed, Crowded):  # It is told again in a second.
                self.stream.post(CloudState(figures))

    def look_again(self, conditions: Conditions) -> Iterator[None]:
        """Advise anew what has changed with these conditions, its own bandwidth left out; with pauses."""
        self._timings_left = TIMINGS

        def position(session: int) -> int | None:
            entry = self._sessions.ledger.entries.get((self.connection, session))
            return None if entry is None else entry.position

        conditions = replace(conditions, up_bytes_s=self.measured.up_bytes_s or None)
        for advice in self._advising.look_again(conditions, position):
            self._advise(advice)
            yield

    async def serve(self) -> None:
        """Until the connection ends. Raises ``ConnectionFailed``."""
        try:
            self._advise(self._advising.default(self._engine.conditions()))
            worked_s = 0.0
            while True:
                frame = await self.stream.receive()
                began = perf_counter()
                await self._handle(frame)
                worked_s += perf_counter() - began
                if worked_s > TURN_S:
                    worked_s = 0.0
                    await asyncio.sleep(0)  # To receive what is there already is no pause.
        finally:
            self._errands.end_all()
            self._sessions.leave(self.connection)
            self.count_bytes()

    async def _handle(self, frame: Frame) -> None:
        message = frame.message
        if isinstance(message, LinkState):
            self.measured = message
        elif isinstance(message, Timing):
            self._count(message)
        else:
            session: int = message.session  # type: ignore[union-attr,assignment]
            try:
                await self._work(session, message, frame.tensors)
            except SessionFailed as failure:
                if failure.code is Code.UNKNOWN_SESSION and session in self._ended:
                    return  # It was told why when that session ended.
                # Also one that was open already: its device takes it for ended from now on.
                self._sessions.close((self.connection, session))
                self._refuse(session, failure)

    async def _work(self, session: int, message: AnyMessage, tensors: tuple[Tensor, ...]) -> None:
        """Hand one session message to the engine. Raises ``SessionFailed``."""
        key, sessions = (self.connection, session), self._sessions
        match message:
            case Forward():
                await self._forward(message, tensors[0])
            case Truncate():
                sessions.truncate(key, message.position)
            case Keep():
                sessions.keep(key, message.nodes)
            case Open():
                self._open(message)
            case Fork():
                source = (self.connection, message.source)
                sessions.fork(source, key, message.position, partial(self._deliver, session))
                self._begun(session, message.errand, "fork", position=message.position)
            case Resume():
                before = self._tokens.get(message.token)
                if before is None:
                    raise SessionFailed(Code.UNKNOWN_SESSION, "that connection is not known here any more")
                old = (before, message.old_session)
                try:
                    sessions.resume(old, key, message.position, partial(self._deliver, session))
                except SessionFailed:
                    if before == self.connection:  # Its device has nothing more to do with the old number.
                        sessions.close(old)
                        self._errands.end(message.old_session, "closed")
                    raise
                if before == self.connection:  # Nobody names the old number again.
                    self._errands.end(message.old_session, "resumed")
                self._begun(session, message.errand, "resume", position=message.position)
            case Park():
                sessions.park(key)
                self._errands.end(session, "parked")
            case Close():
                sessions.close(key)
                self.stream.withdraw(session)
                self._advising.closed(session)
                self._say("session closed", session)
                self._errands.end(session, "closed")

    def _open(self, message: Open) -> None:
        session = message.session
        self._sessions.open(
            (self.connection, session),
            self.tenant,
            message.positions,
            partial(self._deliver, session),
            prompt=message.prompt,
            expected=message.expected,
            replayed=message.replayed,
        )
        self._begun(session, message.errand, "replay" if message.replayed else "open")
        if message.prompt and not message.replayed:
            conditions = self._engine.conditions(self.measured.up_bytes_s or None)
            self._advise(self._advising.opened(session, message.prompt, conditions))

    async def _forward(self, message: Forward, tensor: Tensor) -> None:
        """Rows are looked at once, before they are unpacked: it may be long, and what is refused is not worth it."""
        self._rows.check(tensor)
        parents = None if message.parents is None else [number - 1 for number in message.parents]
        forward = self._sessions.admit(
            (self.connection, message.session),
            message.sequence,
            message.position,
            tensor.shape[0],
            message.want,
            parents,
        )
        if message.errand is not None:
            self._begun(message.session, message.errand, "next turn")
        try:
            self._sessions.queue(forward, await self._rows.read(tensor))
        except SessionFailed:
            if self._sessions.holds(forward.session):
                raise  # Else it has ended meanwhile, and was told so.

    def _begun(self, session: int, errand: Errand | None, how: str, **what: object) -> None:
        self._ended.pop(session, None)
        self._sessions.works_for((self.connection, session), self._errands.begin(session, errand, how))
        self._say("session begun", session, how=how, **what)

    def _say(self, event: str, session: int, **what: object) -> None:
        """Nothing that a device can bring about as often as it likes is written at the usual level."""
        if request_id := self._errands.request_id(session):
            what["request_id"] = request_id
        log.debug(event, connection=self.connection, session=session, **what)

    def _deliver(self, session: int, outcome: Answered | SessionFailed) -> None:
        if isinstance(outcome, SessionFailed):
            self._refuse(session, outcome)
            return
        self._errands.answered(session, outcome)
        tensors = () if outcome.rows is None else (self._rows.written(outcome.rows),)
        times_us = int(outcome.queue_s * 1e6), int(outcome.step_s * 1e6)
        try:
            self.stream.post(Result(session, outcome.sequence, *times_us, outcome.step_rows), tensors)
        except Crowded:  # It reads so slowly that its answers would fill the memory: it may come back for them.
            self._sessions.close((self.connection, session))
            self._refuse(session, SessionFailed(Code.PREEMPTED, "its answers are read too slowly"))
        except ConnectionFailed:
            pass  # The reader of this stream ends the sessions.

    def _refuse(self, session: int, failure: SessionFailed) -> None:
        self._metrics.refused.labels(failure.code.value).inc()
        self._say("session ended", session, code=failure.code.value)
        self._errands.end(session, "ended", failure.code)
        self._advising.closed(session)
        self.stream.withdraw(session)
        self._ended[session] = None
        if len(self._ended) > REMEMBERED_ENDS:
            del self._ended[next(iter(self._ended))]
        with suppress(ConnectionFailed):
            self.stream.post(Failed(failure.code.value, failure.message, session, failure.param, failure.retry_after_s))

    def _advise(self, advice: Advice | None) -> None:
        if advice is not None:
            with suppress(ConnectionFailed):
                self.stream.post(advice)

    def _count(self, timing: Timing) -> None:
        if not self._timings_left:
            return
        self._timings_left -= 1
        for metric, times in ((self._metrics.ttft, timing.ttft_us), (self._metrics.tbt, timing.tbt_us)):
            for time_us in times:
                metric.observe(time_us / 1e6)
