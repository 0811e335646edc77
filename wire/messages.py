"""All messages that cross the wire, and what they have to do with one another."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Union, get_args

from wire.message import Drain, Failed, Heartbeat
from wire.peer_messages import PeerChallenge, PeerHello, PeerHere, PeerNote, PeerOver, PeerPost, PeerWelcome
from wire.request_messages import AgentHello, GatewayWelcome, RequestMessage
from wire.session_messages import CloudWelcome, DeviceHello, SessionMessage

AnyMessage = Union[
    Heartbeat,
    Failed,
    Drain,
    SessionMessage,
    RequestMessage,
    PeerChallenge,
    PeerHello,
    PeerHere,
    PeerWelcome,
    PeerPost,
    PeerOver,
    PeerNote,
]

HELLOS = (DeviceHello, CloudWelcome, AgentHello, GatewayWelcome, PeerHello, PeerChallenge)


def tags_of(*kinds: type) -> frozenset[int]:
    """Return the tags that messages of these kinds begin with."""
    return frozenset(each.__struct_config__.tag for each in kinds)  # type: ignore[attr-defined]


def subject_of(message: AnyMessage) -> int | None:
    """Return the session or request that a message belongs to, if any: what is said of one subject stays in order."""
    read = _SUBJECT.get(type(message))
    return None if read is None else read(message)


_SUBJECT: dict[type, Callable[[Any], int | None]] = {Failed: attrgetter("subject")}
for _kind in get_args(AnyMessage):
    if _kind.__struct_fields__[0] in ("session", "request"):  # Whose it is a message says first.
        _SUBJECT[_kind] = attrgetter(_kind.__struct_fields__[0])
