"""Frames: what goes in comes out; whatever else arrives is refused with a typed error and nothing is allocated."""

from __future__ import annotations

import io
import os
import zipfile

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import Code, ConnectionFailed
from wire.frames import Frame, Tensor, decode, encode
from wire.limits import CLOUD_LINK, GATEWAY_LINK, MAX_BRANCHING_ROWS, PROTOCOL_VERSION, LinkLimits
from wire.message import Failed, Heartbeat
from wire.request_messages import ChatTurn, Finished, Generate, Sampling, Spent, Timings
from wire.session_messages import Forward, Keep, Open, Result, Truncate

ITEM = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8}
counts = st.integers(0, 2**32 - 1)
nodes = st.lists(counts, max_size=MAX_BRANCHING_ROWS)
sizes = st.integers(0, 2**53 - 1)
spent = st.builds(Spent, sizes, sizes, sizes, sizes)
messages = st.one_of(
    st.builds(Open, counts, counts),
    st.builds(Forward, counts, counts, counts, counts),
    st.builds(Forward, counts, counts, counts, counts, nodes),
    st.builds(Keep, counts, nodes),
    st.builds(Result, counts, counts, counts, counts, counts),
    st.builds(Truncate, counts, counts),
    st.builds(Heartbeat, *(st.integers(0, 2**top) for top in (62, 62, 40))),
    st.builds(
        Finished,
        counts,
        counts,
        st.sampled_from(["stop", "length"]),
        st.none() | st.builds(Timings, spent, spent, counts),
    ),
    st.builds(Failed, st.text(max_size=40), st.text(max_size=100), st.none() | counts),
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any small tensor."""
    dtype = draw(st.sampled_from(sorted(ITEM)))
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    size = ITEM[dtype]
    for each in shape:
        size *= each
    if size > 1 and draw(st.booleans()):
        return Tensor(dtype, shape, os.urandom(draw(st.integers(1, size - 1))), packed=True)
    return Tensor(dtype, shape, os.urandom(size))


def same(a: Frame, b: Frame) -> bool:
    """Equal messages and equal tensors, byte for byte."""
    return a.message == b.message and [(t.dtype, t.shape, bytes(t.data), t.packed) for t in a.tensors] == [
        (t.dtype, t.shape, bytes(t.data), t.packed) for t in b.tensors
    ]


@given(messages, st.lists(tensors(), max_size=1), counts)
def test_round_trip(message: Forward, payload: list[Tensor], number: int) -> None:
    """Decoding an encoded frame gives the same message, the same bytes and the same number."""
    frame = decode(encode(message, payload, number), CLOUD_LINK)
    assert same(frame, Frame(message, tuple(payload))) and frame.number == number


@given(messages, st.lists(tensors(), max_size=1), st.data())
def test_a_changed_frame_is_refused_or_a_frame(message: Forward, payload: list[Tensor], data: st.DataObject) -> None:
    """Any bytes changed, cut off or added: a typed error or a well-formed frame, never another exception."""
    good = bytearray(encode(message, payload))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    bad = bytes(good[:cut]) + data.draw(st.binary(max_size=8))
    try:
        frame = decode(bad, CLOUD_LINK)
    except ConnectionFailed as failure:
        assert failure.code in (Code.BAD_FRAME, Code.TOO_LARGE, Code.VERSION_MISMATCH)
    else:
        for tensor in frame.tensors:
            assert len(tensor.data) > 0


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    """Random bytes never do more than fail."""
    with pytest.raises(ConnectionFailed):
        decode(data, CLOUD_LINK)


def archive() -> bytes:
    """What torch.save writes: a zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("data.pkl", b"\x80\x02}q\x00.")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [b"\x80\x04\x95\x10\x00", archive(), b"\x93NUMPY\x01\x00", b"{}", b"", b"TL"],
    ids=lambda data: repr(data[:6]),
)
def test_other_formats_are_refused(data: bytes) -> None:
    """Pickles, archives, arrays and text are no frames."""
    with pytest.raises(ConnectionFailed) as refused:
        decode(data, CLOUD_LINK)
    assert refused.value.close_code == 1007


@pytest.mark.parametrize(
    ("shape", "size"),
    [((2**31, 2**31, 2, 2), 8), ((3, 4), 44), ((3, 4), 52), ((2**32 - 1,), 0)],
    ids=["overflow", "short", "long", "huge"],
)
def test_a_shape_that_lies_is_refused(shape: tuple[int, ...], size: int) -> None:
    """Sizes that do not fit the bytes that are there, however large, are found before anything is allocated."""
    with pytest.raises(ConnectionFailed) as refused:
        decode(encode(Forward(1, 0, 0, 1), [Tensor("float32", shape, b"x" * size)]), CLOUD_LINK)
    assert refused.value.code is Code.BAD_FRAME


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 2.0**32])
def test_times_that_cannot_be_are_refused(seconds: float) -> None:
    """Nobody comes back for ever, before now, or at no time at all: what counts tries would not count such."""
    with pytest.raises(ConnectionFailed) as refused:
        decode(encode(Failed("internal", "why", 1, retry_after_s=seconds)), CLOUD_LINK)
    assert refused.value.code is Code.BAD_FRAME


@pytest.mark.parametrize("clock", [(-1, 0, 0), (1, 2**63, 0), (1, 1, -(2**62))])
def test_clocks_that_cannot_be_are_refused(clock: tuple[int, int, int]) -> None:
    """A round trip is measured by them, and what is sent by that."""
    with pytest.raises(ConnectionFailed):
        decode(encode(Heartbeat(*clock)), CLOUD_LINK)


def test_more_nodes_than_may_come_are_refused() -> None:
    """Parents and nodes are counted before anything is made of them; as many as may come fit the header at any size."""
    most, row = [2**32 - 1] * MAX_BRANCHING_ROWS, Tensor("float32", (1,), b"x" * 4)
    decode(encode(Forward(1, 0, 0, 1, most), [row]), CLOUD_LINK)
    decode(encode(Keep(1, most)), CLOUD_LINK)
    for message, tensors in ((Forward(1, 0, 0, 1, [*most, 0]), [row]), (Keep(1, [*most, 0]), [])):
        with pytest.raises(ConnectionFailed) as refused:
            decode(encode(message, tensors), CLOUD_LINK)
        assert refused.value.code is Code.BAD_FRAME


class FinishedBefore(msgspec.Struct, frozen=True, array_like=True, tag_field="type", tag=36):
    """``Finished`` as peers know it that know no timings."""

    request: int
    index: int
    reason: str


def test_peers_that_know_no_timings() -> None:
    """They read the message and leave them out; theirs is read, and has none."""
    timings = Timings(Spent(1, 2, 3, 4), Spent(5, 6, 7, 8), 9)
    new, old = Finished(1, 0, "stop", timings), FinishedBefore(1, 0, "stop")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(new), type=FinishedBefore) == old
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=Finished) == Finished(1, 0, "stop", None)


def test_zero_and_many_dimensions_are_refused() -> None:
    """A tensor has 1 to 4 dimensions, none of them 0, and a frame at most one tensor."""
    for shape, size in (((0, 4), 0), ((1, 1, 1, 1, 1), 4)):  # As many bytes as they say.
        with pytest.raises(ConnectionFailed):
            decode(encode(Forward(1, 0, 0, 1), [Tensor("float32", shape, b"x" * size)]), CLOUD_LINK)
    with pytest.raises(ConnectionFailed):
        decode(encode(Forward(1, 0, 0, 1), [Tensor("float32", (1,), b"x" * 4)] * 2), CLOUD_LINK)


def test_limits_are_held() -> None:
    """A frame or header over the link's limit is too_large (close code 1009)."""
    turns = [ChatTurn("user", "x" * 5000)]
    request = encode(Generate(1, "id", "model", turns, sampling=Sampling(logit_bias={5: 1.0})))
    assert isinstance(decode(request, GATEWAY_LINK).message, Generate)
    for limits in (CLOUD_LINK, LinkLimits(frame_bytes=100)):
        with pytest.raises(ConnectionFailed) as refused:
            decode(request, limits)
        assert refused.value.close_code == 1009


def test_another_version_is_named() -> None:
    """The error says both versions."""
    data = bytearray(encode(Open(1, 1)))
    data[2] = PROTOCOL_VERSION + 1
    with pytest.raises(ConnectionFailed, match=f"version {PROTOCOL_VERSION + 1}") as refused:
        decode(bytes(data), CLOUD_LINK)
    assert refused.value.code is Code.VERSION_MISMATCH


def test_a_decode_row_costs_little_beyond_itself() -> None:
    """Both frames of one decoded token, websocket headers included, stay within 1.1 times two rows of 256 bfloat16."""
    row = Tensor("bfloat16", (1, 256), b"x" * 512)
    up = len(encode(Forward(2**16, 2**16, 2**16, 1), [row])) + 8
    down = len(encode(Result(2**16, 2**16, 2**20, 2**20, 64), [row])) + 4
    assert up + down <= 1.1 * 2 * 512
