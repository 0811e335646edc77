"""Neighbouring releases work together: one that knows errands and trace contexts, and one that does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from wire.errand import Errand
from wire.frames import decode, encode
from wire.limits import CLOUD_LINK, GATEWAY_LINK
from wire.observed_messages import CloudFigures
from wire.request_messages import AgentHello, AgentState, Done, Generate, ServedModel
from wire.session_messages import CloudWelcome, DeviceHello, Fork, Forward, Open, Resume

ERRAND = Errand("r-1", f"00-{'a' * 32}-{'b' * 16}-01")

OF_SESSIONS: list[tuple[Any, int]] = [
    (Open(1, 2, 3, 4, True, ERRAND), 1),
    (Forward(1, 0, 0, 1, None, ERRAND), 1),
    (Resume(2, "token", 1, 5, ERRAND), 1),
    (Fork(2, 1, 5, ERRAND), 1),
]
WELCOME = CloudWelcome("cloud", 1, 2, 3, 4, "token", 5.0, pads=True, version="0.1")
OF_HELLOS: list[tuple[Any, int]] = [
    (WELCOME, 1),
    (DeviceHello("device", "", "model", "digest", 1, 2, 8, "float32", pads=True, takes_state=True), 1),
    (AgentHello("agent", "", [ServedModel("m", 8, 0)], 1, True, pads=True, observable=True), 1),
    (AgentState(1, True, None, 7), 1),
    (CloudFigures("0.1", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, id="a1b2"), 1),
]
OF_REQUESTS: list[tuple[Any, int]] = [
    (Generate(1, "r-1", "m", "", traceparent=ERRAND.traceparent, left_out=["top_p"]), 1),
    (Done(1, 5, 6, 0, 4, 3, 2), 1),
]


def header(message: Any) -> list[Any]:
    """What a message is on the wire, as a list."""
    found: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    return found


@pytest.mark.parametrize(("message", "new"), [*OF_SESSIONS, *OF_REQUESTS, *OF_HELLOS])
def test_a_message_of_the_release_before_is_read(message: Any, new: int) -> None:
    """Its last fields are missing: they have their defaults."""
    older = msgspec.msgpack.encode(header(message)[:-new])
    read = msgspec.msgpack.decode(older, type=type(message))
    last = type(message).__struct_fields__[-1]
    assert getattr(read, last) in (None, "", 0, []) and getattr(message, last) not in (None, "", 0, [])
    assert header(read)[:-new] == header(message)[:-new]


@pytest.mark.parametrize(("message", "new"), [*OF_SESSIONS, *OF_REQUESTS, *OF_HELLOS])
def test_the_release_before_reads_ours(message: Any, new: int) -> None:
    """It ignores what it does not know at the end; so does this release with what the next one adds."""
    newer = msgspec.msgpack.encode([*header(message), "of the next release", 7])
    assert msgspec.msgpack.decode(newer, type=type(message)) == message


@pytest.mark.parametrize("message", [each for each, _ in OF_SESSIONS if not isinstance(each, Forward)])
def test_it_crosses_the_link_to_the_cloud(message: Any) -> None:
    """As it was said."""
    assert decode(encode(message), CLOUD_LINK).message == message


def test_it_crosses_the_link_to_the_agent() -> None:
    """The trace context goes with the request."""
    request = OF_REQUESTS[0][0]
    assert decode(encode(request), GATEWAY_LINK).message == request


def test_a_cloud_that_pads_is_understood_by_the_release_before() -> None:
    """It knows whether frames are padded, and not yet which release a cloud server is: that stands behind."""
    assert header(WELCOME)[-2:] == [True, "0.1"]
