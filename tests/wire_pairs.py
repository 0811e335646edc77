"""Two ends of one connection, without sockets."""

from __future__ import annotations

from wire.connection import Connection, Role, State
from wire.frames import Frame, Tensor
from wire.limits import (
    CLOUD_LINK,
)
from wire.session_messages import (
    CloudWelcome,
    DeviceHello,
)

HELLO = DeviceHello("device", "", "model", "sha256:00", 1, 3, 4, "float32")

WELCOME = CloudWelcome("cloud", 8, 8, 8, 8)

ROW = Tensor("float32", (1, 4), b"x" * 16)


def say(connection: Connection, message: object, tensors: tuple[Tensor, ...], now: float) -> bytes:
    """The one websocket message that carries a short message, as it leaves."""
    data = connection.frame(message, tensors, now)  # type: ignore[arg-type]
    connection.leaves(data, now)
    return bytes(data)


def beat_of(connection: Connection, now: float) -> bytes:
    """The heartbeat that is due."""
    data = connection.tick(now)
    assert data is not None
    connection.leaves(data, now)
    return bytes(data)


class Pair:
    """A device and a cloud with a link between them that tests can look into."""

    def __init__(self) -> None:
        self.now = 0.0
        self.device = Connection(Role.DEVICE, CLOUD_LINK, 0.0)
        self.cloud = Connection(Role.CLOUD, CLOUD_LINK, 0.0)

    def up(self, message: object, tensors: tuple[Tensor, ...] = ()) -> Frame | None:
        """Device to cloud."""
        return self.cloud.receive(say(self.device, message, tensors, self.now), self.now)

    def down(self, message: object, tensors: tuple[Tensor, ...] = ()) -> Frame | None:
        """Cloud to device."""
        return self.device.receive(say(self.cloud, message, tensors, self.now), self.now)

    def greeted(self) -> Pair:
        """Both hellos exchanged."""
        self.up(HELLO)
        self.down(WELCOME)
        assert (self.device.state, self.cloud.state) == (State.OPEN, State.OPEN)
        return self
