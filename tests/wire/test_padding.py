"""Padded frames: of few sizes, the same frame when they come, and refused where they are padded in any other way."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_pairs import HELLO, ROW, WELCOME, say

from wire.connection import Connection, Role
from wire.errors import Code, ConnectionFailed
from wire.frames import Tensor, decode, encode
from wire.hello import check_padding
from wire.limits import (
    CLOUD_LINK,
    FRAME_MARGIN_BYTES,
    GATEWAY_LINK,
    LEAST_BUCKET_BYTES,
    MAX_FRAME_BYTES,
    SHORT_FRAME_BYTES,
)
from wire.message import Heartbeat
from wire.padding import PADDED, Padding
from wire.parts import first_part, further_part, goes_in_parts
from wire.request_messages import AgentHello, Delta, GatewayWelcome, ServedModel
from wire.session_messages import Forward, Truncate

PADDING = Padding.of(CLOUD_LINK, 256, "float32")
lengths = st.integers(1, MAX_FRAME_BYTES)
rows_sizes = st.integers(0, 300).map(lambda quarters: 4 * quarters)


def framed(size: int) -> bytearray:
    """A frame with a tensor of so many bytes, or none."""
    return encode(Forward(1, 2, 3, 4), [Tensor("float32", (size // 4,), b"\7" * size)] if size else [])


@given(lengths, st.sampled_from([0, 64, 256, 3000, 8192]))
def test_sizes_are_few_and_no_more_than_double(length: int, hidden: int) -> None:
    """A bucket is no smaller than the frame and no larger than a frame may be; but for the smallest it is less than
    twice the frame and the margin; what is padded once would be padded to no other size by a shorter frame of it."""
    padding = Padding.of(CLOUD_LINK, hidden, "float32")
    size = padding.size(length)
    assert length <= size <= MAX_FRAME_BYTES
    if size == length:
        assert length > MAX_FRAME_BYTES - 4
    else:
        assert size <= max(padding.least, 2 * length) + FRAME_MARGIN_BYTES
        assert size == MAX_FRAME_BYTES or (size - FRAME_MARGIN_BYTES).bit_count() == 1
    assert padding.size(max(1, length - 1)) <= size


def test_rows_fit_the_buckets() -> None:
    """A short message is as long as a row; a row of a power of two takes no more than the margin, and stays short."""
    assert PADDING.least == LEAST_BUCKET_BYTES == 4 * 256
    assert PADDING.size(len(framed(1024))) == PADDING.size(20) == 1024 + FRAME_MARGIN_BYTES
    wide = Padding.of(CLOUD_LINK, 8192, "float32")
    assert wide.size(len(framed(4 * 8192))) == wide.size(20) == SHORT_FRAME_BYTES
    assert Padding.of(GATEWAY_LINK).least == LEAST_BUCKET_BYTES
    assert Padding.of(CLOUD_LINK, 2**32 - 1, "float32").size(9) == MAX_FRAME_BYTES
    assert Padding.of(CLOUD_LINK, 2**32 - 1, "no such dtype").least == LEAST_BUCKET_BYTES


@given(rows_sizes)
def test_what_is_padded_comes_as_it_was(size: int) -> None:
    """The message and every byte of its tensor, from a frame that is as long as its bucket."""
    plain = framed(size)
    padded = bytearray(plain)
    PADDING.pad(padded)
    assert len(padded) == PADDING.size(len(plain)) and PADDING.whole(padded) == len(plain)
    found, before = decode(padded, CLOUD_LINK, padding=PADDING), decode(plain, CLOUD_LINK)
    assert found.message == before.message
    assert [bytes(each.data) for each in found.tensors] == [bytes(each.data) for each in before.tensors]


@given(rows_sizes, st.data())
def test_any_other_padding_is_refused(size: int, data: st.DataObject) -> None:
    """Bytes that are not 0, another count, a byte more or less: a typed error, whatever was changed of the padding."""
    plain = framed(size)
    padded = bytearray(plain)
    PADDING.pad(padded)
    at = data.draw(st.integers(len(plain), len(padded) - 1))
    change = data.draw(st.sampled_from(["other byte", "more", "less"]))
    if change == "other byte":
        padded[at] = data.draw(st.integers(0, 255).filter(lambda value: value != padded[at]))
    elif change == "more":
        padded[at:at] = bytes(data.draw(st.integers(1, 20)))
    else:
        del padded[at : at + data.draw(st.integers(1, 20))]
    with pytest.raises(ConnectionFailed) as refused:
        decode(padded, CLOUD_LINK, padding=PADDING)
    assert refused.value.code is Code.BAD_FRAME


@given(st.binary(max_size=200))
def test_any_bytes_never_do_more_than_fail(data: bytes) -> None:
    """Also where they say that they are padded."""
    with pytest.raises(ConnectionFailed):
        decode(b"TL\x05" + bytes([PADDED]) + data, CLOUD_LINK, padding=PADDING)


def test_padding_that_was_not_agreed_is_no_frame() -> None:
    """Neither is a frame that has to be taken for one with 64 tensors."""
    padded = framed(0)
    PADDING.pad(padded)
    with pytest.raises(ConnectionFailed, match="tensors"):
        decode(padded, CLOUD_LINK)


def test_the_longest_frames_have_no_room() -> None:
    """They go as they are; one that has room for the count alone is padded with no more."""
    for short, padded in ((0, MAX_FRAME_BYTES), (3, MAX_FRAME_BYTES - 3), (4, MAX_FRAME_BYTES), (5, MAX_FRAME_BYTES)):
        assert PADDING.size(MAX_FRAME_BYTES - short) == padded


def greeted(asks: bool, grants: bool) -> tuple[Connection, Connection]:
    """A device and a cloud that have said whether they pad."""
    device, cloud = Connection(Role.DEVICE, CLOUD_LINK, 0.0), Connection(Role.CLOUD, CLOUD_LINK, 0.0)
    hello = msgspec.structs.replace(HELLO, hidden_size=256, pads=asks)
    assert cloud.receive(say(device, hello, (), 0.0), 0.0) is not None
    assert device.receive(say(cloud, msgspec.structs.replace(WELCOME, pads=grants), (), 0.0), 0.0) is not None
    return device, cloud


def test_both_pad_once_both_have_said_so() -> None:
    """Rows, words of control and heartbeats, either way, each as long as the others, and each comes as it was."""
    device, cloud = greeted(True, True)
    assert device.padding == cloud.padding == PADDING
    for message, tensors in ((Truncate(1, 9), ()), (Forward(1, 0, 0, 1), (ROW,)), (Heartbeat(5), ())):
        data = say(device, message, tensors, 0.0)
        assert len(data) == 1024 + FRAME_MARGIN_BYTES
        frame = cloud.receive(data, 0.0)
        assert isinstance(message, Heartbeat) or (frame is not None and frame.message == message)
    assert cloud.failure is None
    assert device.receive(say(cloud, Heartbeat(7), (), 0.0), 0.0) is None and device.failure is None


@pytest.mark.parametrize(("asks", "grants"), [(False, False), (True, False), (False, True)])
def test_nothing_is_padded_unless_both_have_said_so(asks: bool, grants: bool) -> None:
    """A peer of an older release says nothing; one that grants what nobody asked for gets nothing."""
    device, cloud = greeted(asks, grants)
    assert device.padding is cloud.padding is None
    assert len(say(device, Truncate(1, 9), (), 0.0)) < 32


def test_a_long_frame_is_padded_before_it_is_cut() -> None:
    """Its parts are as many as its bucket's."""
    device, cloud = greeted(True, True)
    rows = Tensor("float32", (70, 256), bytes(70 * 1024))
    data = device.frame(Forward(1, 0, 0, 0), (rows,), 0.0)
    assert len(data) == 128 * 1024 + FRAME_MARGIN_BYTES and goes_in_parts(len(data))
    view, part = memoryview(bytes(data)), 64 * 1024
    parts = [first_part(1, view), *(further_part(1, view, at) for at in range(part, len(view), part))]
    for each in parts:
        device.leaves(each, 0.0)
        frame = cloud.receive(bytes(each), 0.0)
    assert frame is not None and frame.tensors[0].shape == (70, 256)


def test_agents_and_gateways_pad_too() -> None:
    """A piece of an answer is as long as any other, whatever its text."""
    agent, gateway = Connection(Role.AGENT, GATEWAY_LINK, 0.0), Connection(Role.GATEWAY, GATEWAY_LINK, 0.0)
    hello = AgentHello("agent", "", [ServedModel("model", 100, 0)], 1, pads=True)
    gateway.receive(say(agent, hello, (), 0.0), 0.0)
    agent.receive(say(gateway, GatewayWelcome("gateway", True), (), 0.0), 0.0)
    sizes = {len(say(agent, Delta(1, 0, text, 1), (), 0.0)) for text in ("a", "incomprehensibly", "\u65e5" * 200)}
    assert sizes == {LEAST_BUCKET_BYTES + FRAME_MARGIN_BYTES}


def test_who_asked_in_vain_is_told() -> None:
    """Silence would send what was to be hidden."""
    check_padding(False, False)
    check_padding(True, True)
    with pytest.raises(ConnectionFailed, match="--pad-frames") as refused:
        check_padding(True, False)
    assert refused.value.code is Code.VERSION_MISMATCH
