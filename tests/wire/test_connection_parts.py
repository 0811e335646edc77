"""Frames in parts: signs of life, bounded, and in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_pairs import Pair, say

from wire.errors import Code
from wire.frames import MAGIC, PREFIX, Tensor
from wire.limits import (
    CLOUD_LINK,
    DEAD_AFTER_S,
    HALF_WITHIN_S,
    MAX_HALF_BYTES,
    PART_BYTES,
    PROTOCOL_VERSION,
)
from wire.message import Heartbeat
from wire.outbox import Outbox, Outgoing
from wire.parts import CUT_OFF, FIRST
from wire.session_messages import (
    Forward,
)


def in_parts(pair: Pair, message: object, size: int, now: float) -> list[bytes]:
    """The parts of a long message of the device, all of them numbered."""
    rows = Tensor("float32", (size // 16, 4), bytes(size))
    outbox = Outbox()
    outbox.put(Outgoing(pair.device.frame(message, (rows,), now), 1))  # type: ignore[arg-type]
    parts = []
    while (taken := outbox.take()) is not None:
        pair.device.leaves(taken[0], now)
        parts.append(bytes(taken[0]))
    return parts


def test_every_part_is_a_sign_of_life() -> None:
    """A long message over a link that takes minutes for it arrives."""
    pair = Pair().greeted()
    parts = in_parts(pair, Forward(1, 0, 0, 1), 2**20, 0.0)
    now = 0.0
    for part in parts[:-1]:
        now += DEAD_AFTER_S - 0.1
        pair.cloud.tick(now)
        assert pair.cloud.receive(part, now) is None and pair.cloud.failure is None
    frame = pair.cloud.receive(parts[-1], now)
    assert now > 200 and frame is not None and frame.tensors[0].shape == (2**16, 4)


def test_who_announces_much_and_dies_is_noticed_soon() -> None:
    """As soon as anybody who says nothing, however much was to come."""
    pair = Pair().greeted()
    parts = in_parts(pair, Forward(1, 0, 0, 1), CLOUD_LINK.frame_bytes - 1024, 0.0)
    for part in parts[:3]:
        pair.cloud.receive(part, 0.0)
    pair.cloud.tick(DEAD_AFTER_S - 0.1)
    assert pair.cloud.failure is None and pair.cloud.deadline() <= DEAD_AFTER_S
    pair.cloud.tick(DEAD_AFTER_S)
    assert pair.cloud.failure is not None and pair.cloud.failure.code is Code.TIMEOUT


def test_half_a_frame_is_not_kept_for_ever() -> None:
    """A peer that lives and never sends the rest of what it began is given up."""
    pair = Pair().greeted()
    pair.cloud.receive(in_parts(pair, Forward(1, 0, 0, 1), 2**17, 0.0)[0], 0.0)
    pair.device._sent_frames = pair.cloud._received_frames
    for second in range(5, int(HALF_WITHIN_S), 5):
        pair.cloud.receive(say(pair.device, Heartbeat(1), (), float(second)), float(second))
        pair.cloud.tick(float(second))
    assert pair.cloud.failure is None
    pair.cloud.tick(HALF_WITHIN_S)
    assert pair.cloud.failure is not None and pair.cloud.failure.code is Code.TIMEOUT


@pytest.mark.parametrize("order", [(0, 1, 1), (0, 2), (1,), (0, 2, 1)], ids=["doubled", "dropped", "cut", "swapped"])
def test_parts_out_of_order_end_the_connection(order: tuple[int, ...]) -> None:
    """Each part has its number among all messages, and a frame that lacks one never comes to be."""
    pair = Pair().greeted()
    parts = in_parts(pair, Forward(1, 0, 0, 1), 3 * 2**16, 0.0)
    assert [pair.cloud.receive(parts[each], 0.0) for each in order] == [None] * len(order)
    assert pair.cloud.failure is not None and pair.cloud.failure.code is Code.BAD_FRAME


def test_a_part_that_is_cut_ends_the_connection() -> None:
    """At once: what is missing would never come."""
    pair = Pair().greeted()
    parts = in_parts(pair, Forward(1, 0, 0, 1), 3 * 2**16, 0.0)
    pair.cloud.receive(parts[0], 0.0)
    pair.cloud.receive(parts[1][:-1], 0.0)
    assert pair.cloud.failure is not None and pair.cloud.failure.code is Code.BAD_FRAME


@given(
    st.lists(
        st.tuples(
            st.integers(FIRST - 1, CUT_OFF + 1),
            st.integers(0, 3),
            st.sampled_from([0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES, CLOUD_LINK.frame_bytes, 2**32 - 1]),
            st.sampled_from([0, 1, PART_BYTES - 4, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1]),
        ),
        max_size=30,
    )
)
def test_whatever_parts_a_peer_makes_up_nothing_raises_and_little_is_held(
    parts: list[tuple[int, int, int, int]],
) -> None:
    """The connection ends, or holds what has really come of frames that were announced within the limits."""
    pair = Pair().greeted()
    came = 0
    for kind, frame, total, size in parts:
        data = bytearray(PREFIX.pack(MAGIC, PROTOCOL_VERSION, kind, frame, 0))
        data += (total.to_bytes(4, "little") if kind == FIRST else b"") + bytes(size)
        if pair.cloud.failure is None:
            pair.device.leaves(data, 0.0)
            came += len(data)
        assert pair.cloud.receive(bytes(data), 0.0) is None
        assert pair.cloud._half.held_bytes <= min(came, MAX_HALF_BYTES)
    assert pair.cloud.failure is None or pair.cloud.failure.code in (Code.BAD_FRAME, Code.TOO_LARGE)
