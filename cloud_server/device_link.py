"""One connected device: its frames become work for the engine, the engine's answers become frames."""

from __future__ import annotations

from contextlib import suppress

import torch

from cloud_server.engine import Answer, Engine
from cloud_server.metrics import CloudMetrics
from split_model.tensor_bytes import from_bytes, to_bytes
from wire.errors import Code, ConnectionFailed, SessionFailed
from wire.frames import Frame, Tensor
from wire.hello import CloudIdentity
from wire.messages import Close, Failed, Forward, Open, Result, Truncate
from wire.stream import Stream


class DeviceLink:
    """Serves one device on one stream.

    Args:
        connection: number of this connection; with a session's own number it names the session.
        name: the device's name, for people.
    """

    def __init__(
        self, connection: int, name: str, stream: Stream, engine: Engine, identity: CloudIdentity, metrics: CloudMetrics
    ) -> None:
        self.connection = connection
        self.name = name
        self.stream = stream
        self._engine = engine
        self._identity = identity
        self._metrics = metrics
        self._bytes = (0, 0)

    def take_bytes(self) -> tuple[int, int]:
        """Bytes received and sent since the last call."""
        now = (self.stream.received_bytes, self.stream.sent_bytes)
        before, self._bytes = self._bytes, now
        return now[0] - before[0], now[1] - before[1]

    async def serve(self) -> None:
        """Until the connection ends. Raises ``ConnectionFailed``."""
        try:
            while True:
                frame = await self.stream.receive()
                self._handle(frame)
        finally:
            self._engine.close_device(self.connection)

    def _handle(self, frame: Frame) -> None:
        message = frame.message
        try:
            if isinstance(message, Forward):
                hidden = self._hidden(frame.tensors[0])
                key = (self.connection, message.session)
                self._engine.forward(key, message.sequence, message.position, hidden, message.want)
            elif isinstance(message, Open):
                session = message.session

                def deliver(sequence: int, outcome: Answer | SessionFailed) -> None:
                    self._deliver(session, sequence, outcome)

                self._engine.open((self.connection, session), message.positions, deliver)
            elif isinstance(message, Truncate):
                self._engine.truncate((self.connection, message.session), message.position)
            elif isinstance(message, Close):
                self._engine.close((self.connection, message.session))
        except SessionFailed as failure:
            session = message.session  # type: ignore[union-attr]
            if failure.code is not Code.DUPLICATE_SESSION:
                self._engine.close((self.connection, session))
            self._refuse(session, failure)

    def _hidden(self, tensor: Tensor) -> torch.Tensor:
        """The rows of a forward, a view of the received bytes. Raises ``SessionFailed``."""
        expected = self._identity
        if tensor.dtype != expected.dtype or len(tensor.shape) != 2 or tensor.shape[1] != expected.hidden_size:
            raise SessionFailed(
                Code.SHAPE_MISMATCH,
                f"hidden states of shape {list(tensor.shape)} in {tensor.dtype} came, "
                f"[rows, {expected.hidden_size}] in {expected.dtype} is expected",
            )
        return from_bytes(tensor.dtype, tensor.shape, tensor.data)

    def _deliver(self, session: int, sequence: int, outcome: Answer | SessionFailed) -> None:
        if isinstance(outcome, SessionFailed):
            self._refuse(session, outcome)
            return
        tensors = () if outcome.rows is None else (Tensor(*to_bytes(outcome.rows)),)
        result = Result(session, sequence, int(outcome.queue_s * 1e6), int(outcome.step_s * 1e6), outcome.step_rows)
        with suppress(ConnectionFailed):  # The reader of this stream ends the sessions.
            self.stream.post(result, tensors)

    def _refuse(self, session: int, failure: SessionFailed) -> None:
        self._metrics.refused.labels(failure.code.value).inc()
        with suppress(ConnectionFailed):
            self.stream.post(Failed(failure.code.value, failure.message, session, failure.param, failure.retry_after_s))
