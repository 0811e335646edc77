"""The protocol as a state machine: who may say what, and when silence is death."""

from __future__ import annotations

from types import SimpleNamespace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_pairs import HELLO, ROW, WELCOME, Pair, beat_of, say

from wire.connection import Connection, Role
from wire.errors import Code, LocalMistake
from wire.frames import decode, encode
from wire.limits import (
    CLOUD_LINK,
    DEAD_AFTER_S,
    GATEWAY_LINK,
    GREETING_BYTES,
    HEARTBEAT_S,
    HELLO_WITHIN_S,
)
from wire.message import Failed, Heartbeat
from wire.messages import AnyMessage, subject_of
from wire.observed_messages import CloudFigures, CloudState
from wire.parts import first_part
from wire.request_messages import AgentHello, Delta, GatewayWelcome, Generate, ServedModel
from wire.session_messages import (
    Advice,
    Close,
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

KNOWN_WITHIN_S = 15.0
"""What people are promised of silence; ``DEAD_AFTER_S`` leaves room for who looks late."""


def test_greeting_then_work() -> None:
    """Hello and welcome open both ends; then session messages flow with their tensors."""
    pair = Pair().greeted()
    frame = pair.up(Forward(1, 0, 0, 1), (ROW,))
    assert frame is not None and frame.message == Forward(1, 0, 0, 1) and frame.tensors[0].shape == (1, 4)
    frame = pair.down(Result(1, 0, 1, 2, 3), (ROW,))
    assert frame is not None and isinstance(frame.message, Result)


@pytest.mark.parametrize(
    "message", [Open(1, 1), Close(1), Generate(1, "", "", "")], ids=lambda each: type(each).__name__
)
def test_nothing_before_the_hello(message: object) -> None:
    """A peer that has not introduced itself gets no further than its first message."""
    cloud = Connection(Role.CLOUD, CLOUD_LINK, 0.0)
    assert cloud.receive(encode(message), 0.0) is None  # type: ignore[arg-type]
    assert cloud.failure is not None and cloud.failure.code is Code.UNEXPECTED_MESSAGE


@pytest.mark.parametrize("message", [HELLO, WELCOME, Result(1, 0, 0, 0, 0), Generate(1, "", "", "")])
def test_what_a_role_does_not_accept_ends_the_connection(message: object) -> None:
    """A cloud accepts no second hello, no welcome, no results and no requests."""
    cloud = Pair().greeted().cloud
    assert cloud.receive(encode(message, (), 1), 0.0) is None  # type: ignore[arg-type]
    assert cloud.failure is not None and cloud.failure.code is Code.UNEXPECTED_MESSAGE
    assert cloud.failure.close_code == 1002


@pytest.mark.parametrize(("message", "tensors"), [(Open(1, 1), 1), (Forward(1, 0, 0, 1), 0), (Forward(1, 0, 0, 1), 2)])
def test_tensors_only_where_they_belong(message: object, tensors: int) -> None:
    """A forward has one tensor, an open none."""
    cloud = Pair().greeted().cloud
    assert cloud.receive(encode(message, [ROW] * tensors, 1), 0.0) is None  # type: ignore[arg-type]
    assert cloud.failure is not None and cloud.failure.code is Code.BAD_FRAME


@pytest.mark.parametrize(
    ("order", "taken"),
    [((0, 0), 1), ((1,), 0), ((1, 0), 0), ((0, 2, 1), 1)],
    ids=["doubled", "dropped", "swapped", "gap"],
)
def test_a_frame_out_of_order_ends_the_connection(order: tuple[int, ...], taken: int) -> None:
    """Frames are numbered on each way: one that comes twice, is missing, or overtakes another does no harm."""
    pair = Pair().greeted()
    frames = [say(pair.device, Truncate(1, position), (), 0.0) for position in range(3)]
    got = [pair.cloud.receive(frames[each], 0.0) for each in order]
    assert [each is not None for each in got] == [index < taken for index in range(len(order))]
    assert pair.cloud.failure is not None and pair.cloud.failure.code is Code.BAD_FRAME
    assert pair.cloud.failure.close_code == 1007


def test_frame_numbers_go_round() -> None:
    """After the last number comes 0 again, on both ends alike, and heartbeats count like all frames."""
    pair = Pair().greeted()
    pair.device._sent_frames = pair.cloud._received_frames = 2**32 - 1
    beat = beat_of(pair.device, HEARTBEAT_S)
    assert decode(beat, CLOUD_LINK).number == 2**32 - 1
    pair.cloud.receive(beat, HEARTBEAT_S)
    frame = pair.up(Truncate(1, 0))
    assert frame is not None and frame.number == 0


def test_what_sessions_tell_beside_their_rows() -> None:
    """A device resumes, parks, keeps nodes, and says what it measures; the cloud advises chunks; neither does the
    other's part."""
    pair = Pair().greeted()
    of_sessions = (Resume(3, "token", 1, 7), Fork(4, 3, 7), Keep(3, [0, 2]), Park(3))
    for message in (*of_sessions, LinkState(10**9, 0), Timing([1, 2], [])):
        frame = pair.up(message)
        assert frame is not None and frame.message == message
        with pytest.raises(LocalMistake):
            say(pair.cloud, message, (), 0.0)
    advice = Advice([128, 64], 3, 7)
    frame = pair.down(advice)
    assert frame is not None and frame.message == advice
    with pytest.raises(LocalMistake):
        say(pair.device, advice, (), 0.0)


def test_what_is_said_of_a_session_stays_in_order() -> None:
    """A message that begins with its session's number has it as its subject, whatever else it names."""
    of_sessions = [each for each in get_args(AnyMessage) if each.__struct_fields__[:1] == ("session",)]
    assert {Open, Fork, Forward, Close} <= set(of_sessions)
    for each in of_sessions:
        assert subject_of(each(*range(7, 7 + len(each.__struct_fields__)))) == 7, each


def test_own_mistakes_raise_and_change_nothing() -> None:
    """What the peer would not accept is not sent, and the connection lives."""
    pair = Pair()
    with pytest.raises(LocalMistake):
        say(pair.device, Open(1, 1), (), 0.0)
    pair.greeted()
    for message in (WELCOME, HELLO, Result(1, 0, 0, 0, 0)):
        with pytest.raises(LocalMistake):
            say(pair.device, message, (), 0.0)
    assert pair.up(Open(1, 1)) is not None


def test_no_hello_in_time() -> None:
    """A connection that says nothing ends after the greeting's time."""
    cloud = Connection(Role.CLOUD, CLOUD_LINK, 0.0)
    assert cloud.deadline() == HELLO_WITHIN_S
    assert cloud.tick(HELLO_WITHIN_S - 0.1) is None and cloud.failure is None
    cloud.tick(HELLO_WITHIN_S)
    assert cloud.failure is not None and cloud.failure.code is Code.TIMEOUT


def test_heartbeats_and_round_trip() -> None:
    """An idle end sends heartbeats; the round trip leaves out the time the peer kept them."""
    pair = Pair().greeted()
    pair.now = HEARTBEAT_S
    beat = beat_of(pair.device, pair.now)
    assert isinstance(decode(beat, CLOUD_LINK).message, Heartbeat)
    assert pair.cloud.receive(beat, pair.now + 0.01) is None
    answer = beat_of(pair.cloud, pair.now + 2.0)
    assert pair.device.receive(answer, pair.now + 2.01) is None
    assert pair.device.rtt_s == pytest.approx(0.02, abs=1e-3)


def test_what_is_told_for_people_keeps_no_heartbeat_from_leaving() -> None:
    """However often it is: the round trip of a link that carries nothing else is measured; work leaves them out."""
    pair, state = Pair().greeted(), CloudState(CloudFigures("1", 0, 0, 0, 0, 0, 0, 512, 0, 8, 1))
    beats = []
    for second in range(1, 21):
        pair.now = float(second)
        pair.up(Heartbeat(1))  # The device lives.
        frame = pair.down(state)
        assert frame is not None and frame.message == state
        assert pair.cloud.deadline() - pair.now <= HEARTBEAT_S
        if (beat := pair.cloud.tick(pair.now)) is not None:
            pair.cloud.leaves(beat, pair.now)
            pair.device.receive(beat, pair.now)
            beats.append(second)
    assert beats == [5, 10, 15, 20]
    for second in range(21, 41):
        pair.now = float(second)
        pair.up(Heartbeat(1))
        pair.down(Result(1, 0, 1, 2, 3), (ROW,))
        pair.down(state)
        assert pair.cloud.tick(pair.now) is None
    with pytest.raises(LocalMistake):
        say(pair.device, state, (), pair.now)


def test_the_answer_to_a_hello_is_the_first_round_trip() -> None:
    """So whoever dialled knows it before the link is ever idle; whoever was dialled does not."""
    pair = Pair()
    pair.up(HELLO)
    pair.now = 0.03
    pair.down(WELCOME)
    assert (pair.device.rtt_s, pair.cloud.rtt_s) == (0.03, None)


def test_silence_is_death() -> None:
    """A peer that sends nothing for the limit is taken for dead; one that beats is not."""
    pair = Pair().greeted()
    for second in range(0, 60, int(HEARTBEAT_S)):
        beat = say(pair.device, Heartbeat(1), (), float(second))
        pair.cloud.receive(beat, float(second))
        pair.cloud.tick(float(second))
    assert pair.cloud.failure is None
    pair.cloud.tick(55.0 + DEAD_AFTER_S)
    assert pair.cloud.failure is not None and pair.cloud.failure.code is Code.TIMEOUT


@given(st.floats(0.0, 30.0), st.floats(0.001, 0.4))
def test_silence_is_known_within_15_s(last_s: float, late_s: float) -> None:
    """Whenever between its heartbeats a peer falls silent: counted from then, with every look as late as on a busy
    machine. Nothing but ``deadline`` says when to look, as ``Stream`` does."""
    pair, now = Pair().greeted(), 0.0
    beats = [HEARTBEAT_S * each for each in range(1, 7) if HEARTBEAT_S * each <= last_s]
    while pair.cloud.failure is None:
        now = max(now, pair.cloud.deadline()) + late_s
        while beats and beats[0] <= now:
            pair.cloud.receive(say(pair.device, Heartbeat(1), (), beats[0]), beats.pop(0))
        pair.cloud.tick(now)
    assert not beats and now - DEAD_AFTER_S >= last_s - HEARTBEAT_S
    assert now - last_s <= KNOWN_WITHIN_S


@pytest.mark.parametrize("role", [Role.CLOUD, Role.GATEWAY, Role.DEVICE, Role.AGENT])
def test_before_the_hello_is_over_only_little_is_decoded(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing long, no part of anything, and no message but the hello: what is in others is not looked at."""
    decoded: list[object] = []
    monkeypatch.setattr("wire.frames._DECODER", SimpleNamespace(decode=decoded.append))
    long = encode(AgentHello("agent", "", [ServedModel("model", 100, 0)] * 2000, 1))
    assert len(long) > GREETING_BYTES
    rows = bytearray(bytes(2**17))
    for message, code in (
        (long, Code.TOO_LARGE),
        (encode(Generate(1, "", "", "")), Code.UNEXPECTED_MESSAGE),
        (encode(Delta(1, 0, "text", 1)), Code.UNEXPECTED_MESSAGE),
        (encode(Forward(1, 0, 0, 1), [ROW]), Code.UNEXPECTED_MESSAGE),
        (first_part(1, memoryview(rows)), Code.TOO_LARGE),
        (first_part(1, memoryview(rows))[:64], Code.BAD_FRAME),
    ):
        connection = Connection(role, GATEWAY_LINK, 0.0)
        assert connection.receive(bytes(message), 0.0) is None
        assert connection.failure is not None and connection.failure.code is code
    assert not decoded


def test_a_hello_longer_than_the_peer_takes_is_not_sent() -> None:
    """The side that would send it learns why."""
    agent = Connection(Role.AGENT, GATEWAY_LINK, 0.0)
    with pytest.raises(LocalMistake):
        agent.frame(AgentHello("agent", "", [ServedModel(str(each), 100, 0) for each in range(5000)], 1), (), 0.0)


def test_the_peer_learns_why() -> None:
    """The farewell carries code and message; the other end fails with the same."""
    pair = Pair().greeted()
    pair.cloud.receive(b"garbage", 0.0)
    farewell = pair.cloud.farewell()
    assert farewell is not None
    assert pair.device.receive(farewell, 0.0) is None
    assert pair.device.failure is not None and pair.device.failure.code is Code.BAD_FRAME


def test_an_unknown_code_is_internal() -> None:
    """A newer peer's codes do not break an older one."""
    device = Pair().greeted().device
    device.receive(encode(Failed("a_code_of_tomorrow", "why"), (), 1), 0.0)
    assert device.failure is not None and device.failure.code is Code.INTERNAL


def test_the_first_failure_stays() -> None:
    """What happens after the end changes nothing."""
    cloud = Connection(Role.CLOUD, CLOUD_LINK, 0.0)
    cloud.receive(b"garbage", 0.0)
    first = cloud.failure
    assert cloud.receive(encode(HELLO), 0.0) is None
    assert cloud.failure is first


def test_a_session_error_while_greeting_ends_the_connection() -> None:
    """Before the hello is over there are no sessions: such a failure is the connection's."""
    device = Connection(Role.DEVICE, CLOUD_LINK, 0.0)
    assert device.receive(encode(Failed("internal", "why", 1)), 0.0) is None
    assert device.failure is not None and device.failure.code is Code.INTERNAL


def test_who_is_told_of_no_ends() -> None:
    """Sessions are ended by the cloud and requests by the agent: the same from the other side breaks the protocol, and
    is not sent."""
    pair = Pair().greeted()
    agent, gateway = Connection(Role.AGENT, GATEWAY_LINK, 0.0), Connection(Role.GATEWAY, GATEWAY_LINK, 0.0)
    gateway.receive(say(agent, AgentHello("agent", "", [ServedModel("model", 100, 0)], 1), (), 0.0), 0.0)
    agent.receive(say(gateway, GatewayWelcome("gateway"), (), 0.0), 0.0)
    end = Failed("internal", "why", 1)
    for ends, told in ((pair.cloud, pair.device), (agent, gateway)):
        frame = told.receive(say(ends, end, (), 0.0), 0.0)
        assert frame is not None and frame.message == end
        with pytest.raises(LocalMistake):
            say(told, end, (), 0.0)
        assert ends.receive(encode(end, (), 1), 0.0) is None
        assert ends.failure is not None and ends.failure.code is Code.UNEXPECTED_MESSAGE


def test_a_hello_comes_once() -> None:
    """A second one breaks the protocol though the first has not been answered yet."""
    cloud = Connection(Role.CLOUD, CLOUD_LINK, 0.0)
    assert cloud.receive(encode(HELLO), 0.0) is not None
    assert cloud.receive(encode(HELLO, (), 1), 0.0) is None
    assert cloud.failure is not None and cloud.failure.code is Code.UNEXPECTED_MESSAGE


def test_a_header_longer_than_the_link_takes_is_not_sent() -> None:
    """It would end the peer's connection: the sender learns it first, and the connection lives."""
    gateway = Connection(Role.GATEWAY, GATEWAY_LINK, 0.0)
    gateway.receive(encode(AgentHello("agent", "", [ServedModel("model", 100, 0)], 1)), 0.0)
    say(gateway, GatewayWelcome("gateway"), (), 0.0)
    with pytest.raises(LocalMistake):
        say(gateway, Generate(1, "", "", "x" * (GATEWAY_LINK.header_bytes + 1)), (), 0.0)
    assert say(gateway, Generate(1, "", "", "x"), (), 0.0)
