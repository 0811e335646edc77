"""All messages that cross the wire, and what they have to do with one another."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Union

from wire.message import Drain, Failed, Heartbeat
from wire.peer_messages import PeerChallenge, PeerHello, PeerPost, PeerWelcome
from wire.request_messages import (
    Accepted,
    AgentHello,
    AgentState,
    Cancel,
    Delta,
    Done,
    Finished,
    GatewayWelcome,
    Generate,
)
from wire.session_messages import (
    Advice,
    Close,
    CloudWelcome,
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

AnyMessage = Union[
    Heartbeat, Failed, Drain,
    DeviceHello, CloudWelcome, Open, Forward, Result, Truncate, Keep, Close, Resume, Fork, Park, LinkState, Timing,
    Advice,
    AgentHello, GatewayWelcome, Generate, Cancel, Accepted, Delta, Finished, Done, AgentState,
    PeerChallenge, PeerHello, PeerWelcome, PeerPost,
]  # fmt: skip

HELLOS = (DeviceHello, CloudWelcome, AgentHello, GatewayWelcome, PeerHello, PeerChallenge)


def tags_of(*kinds: type) -> frozenset[int]:
    """The tags that messages of these kinds begin with."""
    return frozenset(each.__struct_config__.tag for each in kinds)  # type: ignore[attr-defined]


def subject_of(message: AnyMessage) -> int | None:
    """The session or request that a message belongs to, if any: what is said of one subject stays in order."""
    read = _SUBJECT.get(type(message))
    return None if read is None else read(message)


_SUBJECT: dict[type, Callable[[Any], int | None]] = {
    each: attrgetter(name)
    for name, kinds in {
        "session": (Open, Forward, Result, Truncate, Keep, Close, Resume, Fork, Park),
        "request": (Generate, Cancel, Accepted, Delta, Finished, Done),
        "subject": (Failed,),
    }.items()
    for each in kinds
}
