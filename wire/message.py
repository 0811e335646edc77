"""What every message is made of, and the messages of both links.

A message is a small array (msgpack), its first item an integer tag, so a decode row costs few bytes beyond its tensor.
New fields go to the end and have a default: an older peer ignores them, a newer one fills them in.

Sessions and requests are numbered by the side that opens them and mean something on one connection only, so nobody can
name another's.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from wire.limits import MAX_BRANCHING_ROWS, MAX_TEXT, MAX_TIMES

Name = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Size = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Seconds = Annotated[float, msgspec.Meta(ge=0, lt=2**32)]

Times = Annotated[list[Count], msgspec.Meta(max_length=MAX_TIMES)]
Nodes = Annotated[list[Count], msgspec.Meta(max_length=MAX_BRANCHING_ROWS)]


class Message(msgspec.Struct, frozen=True, array_like=True, tag_field="type"):
    """Base of all messages: immutable, encoded as an array."""


class Heartbeat(Message, frozen=True, tag=1):
    """I am alive. ``sent_us`` is the sender's clock; ``echo_us`` is the newest one received from the peer (0 = none),
    and ``held_us`` how long it was kept, so that the peer can subtract it from the round trip it measures."""

    sent_us: Size
    echo_us: Size = 0
    held_us: Size = 0


class Failed(Message, frozen=True, tag=2):
    """An error. ``subject`` is the session or request it ends; None means the connection."""

    code: Name
    message: Name
    subject: Number | None = None
    param: Name | None = None
    retry_after_s: Seconds | None = None


class Drain(Message, frozen=True, tag=3):
    """I take nothing new and stop in ``within_s`` seconds; finish what is open or take it elsewhere.

    ``to``: of a cloud server, which other one had better have its sessions, ``ws://host:port``; empty: it does not say.
    """

    within_s: float
    to: Name = ""
