"""The protocol as a state machine: bytes in, frames out, no socket, no clock, no event loop.

What leaves next is another's to say (``outbox.py``): ``frame`` makes the bytes of a message, ``leaves`` numbers each
websocket message as it goes.

A connection begins with a hello from the side that dialled and a welcome from the side that accepted; after that each
role may send what ``_ACCEPTS`` lists. ``receive`` never raises: what the peer did wrong is kept in ``failure``, and
the shell then sends ``farewell()`` and closes. ``now`` is any monotonic clock in seconds, handed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, get_args

from wire.errors import Code, ConnectionFailed, LocalMistake, code_of
from wire.frames import Frame, Tensor, decode, encode, header_bytes, read_prefix, stamp
from wire.limits import (
    DEAD_AFTER_S,
    GREETING_BYTES,
    HEARTBEAT_S,
    HELLO_WITHIN_S,
    MAX_TEXT,
    MESSAGE_BYTES,
    LinkLimits,
)
from wire.message import Drain, Failed, Heartbeat
from wire.messages import HELLOS, AnyMessage, tags_of
from wire.observed_messages import CloudState, Observe, Observed
from wire.padding import Padding
from wire.parts import CUT_OFF, FIRST, Assembly
from wire.peer_messages import PeerChallenge, PeerHello, PeerHere, PeerNote, PeerOver, PeerPost, PeerWelcome
from wire.request_messages import AgentHello, FromAgent, FromGateway, GatewayWelcome
from wire.session_messages import CloudWelcome, DeviceHello, Forward, FromCloud, FromDevice, Result


class Role(Enum):
    """Which end of which link this is. The first of each pair dials."""

    DEVICE = "device"
    CLOUD = "cloud"
    AGENT = "agent"
    GATEWAY = "gateway"
    MEMBER = "member"
    HOST = "host"


class State(Enum):
    """Where a connection stands."""

    GREETING = "greeting"
    OPEN = "open"
    FAILED = "failed"


_ALWAYS: Final = (Heartbeat, Failed)
_FOR_PEOPLE: Final = (CloudState, Observe, Observed)
"""What is said besides, however often: a link that carries nothing else is idle, and measured by heartbeats."""

_ACCEPTS: Final[dict[tuple[Role, State], tuple[type, ...]]] = {
    (Role.CLOUD, State.GREETING): (DeviceHello,),
    (Role.CLOUD, State.OPEN): get_args(FromDevice),
    (Role.DEVICE, State.GREETING): (CloudWelcome,),
    (Role.DEVICE, State.OPEN): (*get_args(FromCloud), Drain),
    (Role.GATEWAY, State.GREETING): (AgentHello,),
    (Role.GATEWAY, State.OPEN): (*get_args(FromAgent), Drain),
    (Role.AGENT, State.GREETING): (GatewayWelcome,),
    (Role.AGENT, State.OPEN): (*get_args(FromGateway), Drain),
    (Role.HOST, State.GREETING): (PeerHello,),
    (Role.HOST, State.OPEN): (PeerPost, PeerOver, PeerNote),
    (Role.MEMBER, State.GREETING): (PeerChallenge,),
    (Role.MEMBER, State.OPEN): (PeerHere, PeerWelcome, PeerPost, PeerOver, PeerNote),
}
"""What each role accepts in each state, beside heartbeats and errors."""

_BEFORE: Final = {role: tags_of(*_ALWAYS, *_ACCEPTS[role, State.GREETING]) for role in Role}
"""Tags of what each role decodes before the hello is over."""

_TOLD_OF_ENDS: Final = (Role.DEVICE, Role.GATEWAY)
"""Who is told by the other side that a session or request has ended; nobody tells the others."""

_PEER: Final = {
    Role.DEVICE: Role.CLOUD,
    Role.CLOUD: Role.DEVICE,
    Role.AGENT: Role.GATEWAY,
    Role.GATEWAY: Role.AGENT,
    Role.MEMBER: Role.HOST,
    Role.HOST: Role.MEMBER,
}


class Connection:
    """One end of one link.

    Attributes:
        state: greeting until both hellos have passed, then open, failed at the first error.
        failure: why it failed, else None.
        rtt_s: the last round trip measured by heartbeats, less the time the peer kept them; before the first, on the
            side that dialled, how long the peer took to answer its hello, else None. A link that is never idle has no
            heartbeats.
        padding: how frames are padded, once both sides have said that they are; else None.
    """

    def __init__(self, role: Role, limits: LinkLimits, now: float) -> None:
        self.role = role
        self.state = State.GREETING
        self.failure: ConnectionFailed | None = None
        self.rtt_s: float | None = None
        self.padding: Padding | None = None
        self._limits = limits
        self._began = now
        self._received_at = now
        self._sent_at = now
        self._worked_at = self._beat_at = now
        self._tells_people = False
        self._said_hello_at: float | None = None
        self._heard_hello = False
        self._peer_sent_us = 0
        self._peer_sent_at = now
        self._sent_frames = 0
        self._received_frames = 0
        self._half = Assembly(limits)
        self._asked: Padding | None = None
        """How they would be, as the side that dialled has asked."""

    def frame(self, message: AnyMessage, tensors: Sequence[Tensor], now: float) -> bytearray:
        """The bytes that carry ``message``, to be cut where they are long, and numbered as they leave.

        Raises:
            LocalMistake: the peer would not accept this message now, or it is over the limits.
        """
        if self.state is State.FAILED:
            raise LocalMistake("the connection has failed")
        greeting = isinstance(message, HELLOS)
        expected = State.GREETING if greeting else State.OPEN
        if not isinstance(message, _ALWAYS) and not isinstance(message, _ACCEPTS[_PEER[self.role], expected]):
            raise LocalMistake(f"a {self.role.value} does not send {type(message).__name__}")
        if isinstance(message, Failed) and message.subject is not None and _PEER[self.role] not in _TOLD_OF_ENDS:
            raise LocalMistake(f"a {self.role.value} ends no session of its peer's")
        if greeting and self._said_hello_at is not None:
            raise LocalMistake("the hello has been said")
        if not greeting and not isinstance(message, _ALWAYS) and self.state is not State.OPEN:
            raise LocalMistake(f"{type(message).__name__} before the hello is over")
        data = encode(message, tensors)
        limits = self._limits
        most = GREETING_BYTES if greeting else limits.frame_bytes
        if len(data) > most or header_bytes(data) > limits.header_bytes:
            raise LocalMistake(f"a frame of {len(data)} bytes is more than this link carries")
        if greeting:
            self._said_hello_at = now
            self._agree(message)
            self._open_when_greeted()
        elif self.padding is not None:
            self.padding.pad(data)
        self._sent_at = now
        if isinstance(message, _FOR_PEOPLE):
            self._tells_people = True
        elif not isinstance(message, Heartbeat):
            self._tells_people, self._worked_at = False, now
        return data

    def leaves(self, data: bytearray, now: float) -> None:
        """Number a websocket message, a frame or a part of one, which must be the next to leave."""
        stamp(data, self._sent_frames)
        self._sent_frames = (self._sent_frames + 1) % 2**32
        self._sent_at = now

    def receive(self, data: bytes | bytearray, now: float) -> Frame | None:
        """The frame for the application that ``data`` is, or completes; None for a heartbeat, for a part with more to
        come, or when the connection has failed."""
        if self.state is State.FAILED:
            return None
        try:
            kind, value, number = read_prefix(data)
            greeting = self.state is State.GREETING
            if len(data) > (GREETING_BYTES if greeting else MESSAGE_BYTES):
                raise ConnectionFailed(Code.TOO_LARGE, f"a message of {len(data)} bytes came")
            self._received_at = now
            self._check_number(number)
            if FIRST <= kind <= CUT_OFF and not greeting:
                whole = self._half.take(kind, value, data, now)
                return None if whole is None else self._accept(decode(whole, self._limits, padding=self.padding), now)
            only = _BEFORE[self.role] if greeting else None
            return self._accept(decode(data, self._limits, only, self.padding), now)
        except ConnectionFailed as failure:
            self.fail(failure)
            return None

    def tick(self, now: float) -> bytearray | None:
        """A heartbeat if one is due. To be called at ``deadline()``; fails the connection when the peer is silent."""
        if self.state is State.FAILED:
            return None
        if self.state is State.GREETING and now - self._began >= HELLO_WITHIN_S:
            self.fail(ConnectionFailed(Code.TIMEOUT, f"no hello within {HELLO_WITHIN_S:g} s"))
            return None
        if now - self._received_at >= DEAD_AFTER_S:
            self.fail(ConnectionFailed(Code.TIMEOUT, f"the peer has been silent for {DEAD_AFTER_S:g} s"))
            return None
        overdue_at = self._half.overdue_at()
        if overdue_at is not None and now >= overdue_at:
            self.fail(ConnectionFailed(Code.TIMEOUT, "the rest of a frame has not come"))
            return None
        if self.state is State.OPEN and now >= self._beat_due:
            self._beat_at = now
            held = int((now - self._peer_sent_at) * 1e6) if self._peer_sent_us else 0
            return self.frame(Heartbeat(int(now * 1e6), self._peer_sent_us, held), (), now)
        return None

    def deadline(self) -> float:
        """When ``tick`` must next be called."""
        if self.state is State.GREETING:
            return self._began + HELLO_WITHIN_S
        silent_at = self._received_at + DEAD_AFTER_S
        overdue_at = self._half.overdue_at()
        return min(silent_at, self._beat_due, silent_at if overdue_at is None else overdue_at)

    @property
    def _beat_due(self) -> float:
        """When a heartbeat is due: nothing was sent for long, or nothing but what is told for people."""
        due = self._sent_at + HEARTBEAT_S
        return min(due, max(self._worked_at, self._beat_at) + HEARTBEAT_S) if self._tells_people else due

    def fail(self, failure: ConnectionFailed) -> None:
        """End the connection with ``failure``; the first one stays."""
        if self.failure is None:
            self.failure = failure
        self.state = State.FAILED

    def farewell(self) -> bytearray | None:
        """The frame that tells the peer why the connection ends; None when the peer itself is gone."""
        if self.failure is None or self.failure.code is Code.LOST:
            return None
        told = encode(Failed(self.failure.code.value, self.failure.message[:MAX_TEXT]), (), self._sent_frames)
        if self.padding is not None:
            self.padding.pad(told)
        return told

    def _check_number(self, number: int) -> None:
        # The websocket keeps order; whatever stands between the two sides may not. A lost, doubled or swapped frame
        # ends the connection before it can do harm, and the sessions are resumed on a new one.
        if number != self._received_frames:
            raise ConnectionFailed(Code.BAD_FRAME, f"frame {number} came, {self._received_frames} is next")
        self._received_frames = (number + 1) % 2**32

    def _accept(self, frame: Frame, now: float) -> Frame | None:
        message = frame.message
        if isinstance(message, Heartbeat):
            self._peer_sent_us, self._peer_sent_at = message.sent_us, now
            if message.echo_us:
                self.rtt_s = max(0.0, now - (message.echo_us + message.held_us) / 1e6)
            return None
        if isinstance(message, Failed) and (message.subject is None or self.state is State.GREETING):
            raise ConnectionFailed(
                code_of(message.code), message.message, param=message.param, retry_after_s=message.retry_after_s
            )
        if isinstance(message, Failed):
            expected = self.role in _TOLD_OF_ENDS
        else:
            # A hello may come again before it was answered, when another one is still what this state accepts.
            expected = isinstance(message, _ACCEPTS[self.role, self.state])
            expected = expected and not (self._heard_hello and isinstance(message, HELLOS))
        if not expected:
            raise ConnectionFailed(
                Code.UNEXPECTED_MESSAGE,
                f"a {self.role.value} expects no {type(message).__name__} while {self.state.value}",
            )
        if len(frame.tensors) not in _TENSORS.get(type(message), (0,)):
            raise ConnectionFailed(Code.BAD_FRAME, f"{type(message).__name__} came with {len(frame.tensors)} tensors")
        if isinstance(message, HELLOS):
            self._heard_hello = True
            self._agree(message)
            if self._said_hello_at is not None:
                self.rtt_s = max(0.0, now - self._said_hello_at)
            self._open_when_greeted()
        return frame

    def _agree(self, message: AnyMessage) -> None:
        """Both hellos in their order: who dials asks for padding, who accepts grants it, and it holds from then on."""
        if isinstance(message, DeviceHello):
            self._asked = Padding.of(self._limits, message.hidden_size, message.dtype) if message.pads else None
        elif isinstance(message, AgentHello):
            self._asked = Padding.of(self._limits) if message.pads else None
        elif isinstance(message, CloudWelcome | GatewayWelcome) and message.pads:
            self.padding = self._asked

    def _open_when_greeted(self) -> None:
        # The side that accepted is open once it has welcomed, the side that dialled once it is welcomed: until then
        # a peer that has not shown its credential can send a hello and nothing else.
        if self._said_hello_at is not None and self._heard_hello:
            self.state = State.OPEN


_TENSORS: Final[dict[type, tuple[int, ...]]] = {Forward: (1,), Result: (0, 1)}
"""How many tensors a message may carry; none where it is not listed."""
