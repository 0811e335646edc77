"""One connected device: its frames become work for the engine, the engine's answers become frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter

import structlog
import torch

from cloud_server.advice import Conditions
from cloud_server.advising import Advising
from cloud_server.engine import Engine
from cloud_server.metrics import CloudMetrics
from cloud_server.sessions import Answer
from split_model.packed_rows import shortest, unpack
from split_model.tensor_bytes import from_bytes
from wire.errors import Code, ConnectionFailed, SessionFailed
from wire.frames import Frame, Tensor
from wire.hello import CloudIdentity
from wire.limits import PACK_BYTES
from wire.messages import (
    Advice,
    Close,
    Failed,
    Forward,
    Keep,
    LinkState,
    Message,
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

APART_BYTES = 64 * 2**10
"""Rows of more bytes are unpacked on another thread, and not packed here at all."""

TURN_S = 0.002
"""After so many seconds of work for devices, whatever else waits for the event loop has its turn."""


class DeviceLink:
    """Serves one device on one stream.

    Args:
        connection: number of this connection; with a session's own number it names the session.
        name: the device's name, for people; its sessions share what tenants share.
        conditions: those that its chunks are cut for, given its upload bandwidth.
        connection_of: the number of the connection that had a resume token, None when it is not known.
    """

    def __init__(
        self,
        connection: int,
        name: str,
        stream: Stream,
        engine: Engine,
        identity: CloudIdentity,
        metrics: CloudMetrics,
        conditions: Callable[[float | None], Conditions],
        connection_of: Callable[[str], int | None],
    ) -> None:
        self.connection = connection
        self.name = name
        self.stream = stream
        self.advising = Advising(conditions, self._advise)
        self._engine = engine
        self._identity = identity
        self._metrics = metrics
        self._connection_of = connection_of
        self._bytes = (0, 0)
        self._timings_left = TIMINGS
        self._ended: dict[int, None] = {}
        self._packs = False
        """Whether the device packed its last rows: its link is slow, so answers are packed too."""

    def take_bytes(self) -> tuple[int, int]:
        """Bytes received and sent since the last call."""
        now = (self.stream.received_bytes, self.stream.sent_bytes)
        before, self._bytes = self._bytes, now
        return now[0] - before[0], now[1] - before[1]

    def look_again(self) -> Iterator[None]:
        """Advise anew what has changed, with pauses."""
        self._timings_left = TIMINGS

        def position(session: int) -> int | None:
            entry = self._engine.ledger.entries.get((self.connection, session))
            return None if entry is None else entry.position

        return self.advising.look_again(position)

    async def serve(self) -> None:
        """Until the connection ends. Raises ``ConnectionFailed``."""
        try:
            self.advising.connected()
            worked_s = 0.0
            while True:
                frame = await self.stream.receive()
                unpacked = await self._unpacked(frame)
                began = perf_counter()
                self._handle(frame, unpacked)
                worked_s += perf_counter() - began
                if worked_s > TURN_S:
                    worked_s = 0.0
                    await asyncio.sleep(0)  # To receive what is there already is no pause.
        finally:
            self._engine.leave(self.connection)

    async def _unpacked(self, frame: Frame) -> torch.Tensor | None:
        """The rows of a forward that came packed, if it is one that will be taken; of many on another thread, since
        the event loop is everybody's. What is wrong with it is said by whoever hands it on."""
        message = frame.message
        if not isinstance(message, Forward) or not frame.tensors[0].packed:
            return None
        tensor = frame.tensors[0]
        try:
            self._check(message, tensor)
            if len(tensor.data) < APART_BYTES:
                return unpack(tensor.dtype, tensor.shape, tensor.data)
            return await asyncio.to_thread(unpack, tensor.dtype, tensor.shape, tensor.data)
        except (SessionFailed, ValueError):
            return None

    def _handle(self, frame: Frame, unpacked: torch.Tensor | None) -> None:
        message = frame.message
        if isinstance(message, LinkState):
            self.advising.measured(message)
        elif isinstance(message, Timing):
            if not self._timings_left:
                return
            self._timings_left -= 1
            for metric, times in ((self._metrics.ttft, message.ttft_us), (self._metrics.tbt, message.tbt_us)):
                for time_us in times:
                    metric.observe(time_us / 1e6)
        else:
            session: int = message.session  # type: ignore[union-attr,assignment]
            try:
                self._work(session, message, frame.tensors, unpacked)
            except SessionFailed as failure:
                if failure.code is Code.UNKNOWN_SESSION and session in self._ended:
                    return  # It was told why when that session ended.
                # Also one that was open already: its device takes it for ended from now on.
                self._engine.close((self.connection, session))
                self._refuse(session, failure)

    def _work(self, session: int, message: Message, tensors: tuple[Tensor, ...], unpacked: torch.Tensor | None) -> None:
        """Hand one session message to the engine. Raises ``SessionFailed``."""
        key, engine = (self.connection, session), self._engine
        if isinstance(message, Forward):
            hidden = self._hidden(message, tensors[0], unpacked)
            engine.forward(key, message.sequence, message.position, hidden, message.want, _parents(message))
        elif isinstance(message, Truncate):
            engine.truncate(key, message.position)
        elif isinstance(message, Keep):
            engine.keep(key, message.nodes)
        elif isinstance(message, Open):
            engine.open(
                key,
                self.name,
                message.positions,
                self._deliver_to(session),
                prompt=message.prompt,
                expected=message.expected,
                replayed=message.replayed,
            )
            self._ended.pop(session, None)
            log.debug("session open", connection=self.connection, session=session, replayed=message.replayed)
            if message.prompt and not message.replayed:
                self.advising.opened(session, message.prompt)
        elif isinstance(message, Resume):
            before = self._connection_of(message.token)
            if before is None:
                raise SessionFailed(Code.UNKNOWN_SESSION, "that connection is not known here any more")
            engine.resume((before, message.old_session), key, message.position, self._deliver_to(session))
            self._ended.pop(session, None)
            log.debug("session resumed", connection=self.connection, session=session, position=message.position)
        elif isinstance(message, Park):
            engine.park(key)
        elif isinstance(message, Close):
            engine.close(key)
            self.advising.closed(session)
            log.debug("session closed", connection=self.connection, session=session)

    def _check_shape(self, tensor: Tensor) -> None:
        """Raises ``SessionFailed`` for rows of another model."""
        expected = self._identity
        if tensor.dtype != expected.dtype or len(tensor.shape) != 2 or tensor.shape[1] != expected.hidden_size:
            raise SessionFailed(
                Code.SHAPE_MISMATCH,
                f"hidden states of shape {list(tensor.shape)} in {tensor.dtype} came, "
                f"[rows, {expected.hidden_size}] in {expected.dtype} is expected",
            )

    def _check(self, message: Forward, tensor: Tensor) -> None:
        """Whether the forward is one to be taken, whatever its rows are. Raises ``SessionFailed``."""
        self._check_shape(tensor)
        key, rows = (self.connection, message.session), tensor.shape[0]
        self._engine.ledger.check_forward(
            key, message.sequence, message.position, rows, message.want, _parents(message)
        )

    def _hidden(self, message: Forward, tensor: Tensor, unpacked: torch.Tensor | None) -> torch.Tensor:
        """The rows of a forward, a view of the received bytes where they did not come packed. Raises
        ``SessionFailed``."""
        if tensor.packed or len(tensor.data) >= PACK_BYTES:  # Shorter ones are never packed and say nothing.
            self._packs = tensor.packed
        if unpacked is not None:
            return unpacked
        if tensor.packed:
            self._check(message, tensor)
            raise SessionFailed(Code.SHAPE_MISMATCH, "hidden states came that cannot be unpacked")
        self._check_shape(tensor)
        return from_bytes(tensor.dtype, tensor.shape, tensor.data)

    def _deliver_to(self, session: int) -> Callable[[int, Answer | SessionFailed], None]:
        def deliver(sequence: int, outcome: Answer | SessionFailed) -> None:
            if isinstance(outcome, SessionFailed):
                self._refuse(session, outcome)
                return
            tensors = () if outcome.rows is None else (self._tensor(outcome.rows),)
            result = Result(session, sequence, int(outcome.queue_s * 1e6), int(outcome.step_s * 1e6), outcome.step_rows)
            with suppress(ConnectionFailed):  # The reader of this stream ends the sessions.
                self.stream.post(result, tensors)

        return deliver

    def _tensor(self, rows: torch.Tensor) -> Tensor:
        return Tensor(*shortest(rows, self._packs and PACK_BYTES <= rows.nbytes < APART_BYTES))

    def _refuse(self, session: int, failure: SessionFailed) -> None:
        self._metrics.refused.labels(failure.code.value).inc()
        # Nothing that a device can bring about as often as it likes is written at the usual level.
        log.debug("session ended", connection=self.connection, session=session, code=failure.code.value)
        self.advising.closed(session)
        self._ended[session] = None
        if len(self._ended) > REMEMBERED_ENDS:
            del self._ended[next(iter(self._ended))]
        with suppress(ConnectionFailed):
            self.stream.post(Failed(failure.code.value, failure.message, session, failure.param, failure.retry_after_s))

    def _advise(self, advice: Advice) -> None:
        with suppress(ConnectionFailed):
            self.stream.post(advice)


def _parents(message: Forward) -> list[int] | None:
    return None if message.parents is None else [number - 1 for number in message.parents]
