"""Headers: what was packed comes out again, and nothing else is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peers.frames import HEADER_BYTES, MOST_BYTES, Kind, PeerFrame, pack, unpack
from wire.errors import ConnectionFailed

WORD = st.integers(0, 2**32 - 1)
PAYLOADS = [kind for kind in Kind if kind < Kind.PULSE]


@given(st.sampled_from(PAYLOADS), WORD, WORD, WORD, st.integers(0, MOST_BYTES))
def test_a_header_comes_out_as_it_went_in(kind: Kind, epoch: int, tag: int, part: int, length: int) -> None:
    """Every field, in as many bytes as every header has."""
    frame = PeerFrame(kind, epoch, tag, part, length)
    assert len(pack(frame)) == HEADER_BYTES
    assert unpack(pack(frame)) == frame


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_rubbish_is_no_header(data: bytes) -> None:
    """It is refused, or it is a header whose length is bounded."""
    try:
        frame = unpack(data)
    except ConnectionFailed:
        return
    assert frame.length <= (MOST_BYTES if frame.kind in PAYLOADS else 0)


@pytest.mark.parametrize("frame", [PeerFrame(Kind.SEND, 0, length=MOST_BYTES + 1), PeerFrame(Kind.PULSE, 0, length=1)])
def test_no_payload_is_longer_than_it_may_be(frame: PeerFrame) -> None:
    """A payload of a gigabyte and more is refused, and any behind a frame that has none."""
    with pytest.raises(ConnectionFailed, match="bytes"):
        unpack(pack(frame))
