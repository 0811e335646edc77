"""Bytes that are made wrong."""

from __future__ import annotations

import random

from faults.corpora import agent_frames, device_frames, http_requests, peer_frames, token_messages
from faults.mutate import CHANGES, mutated
from faults.raw_sockets import framed
from hypothesis import given
from hypothesis import strategies as st

from wire.frames import decode
from wire.limits import CLOUD_LINK, GATEWAY_LINK, PEER_LINK, LinkLimits
from wire.parts import FIRST


@given(st.integers(), st.lists(st.binary(max_size=40), min_size=1, max_size=4))
def test_anything_can_be_made_wrong(seed: int, corpus: list[bytes]) -> None:
    """Also nothing at all, by every change, and the same way each time."""
    assert mutated(random.Random(seed), corpus) == mutated(random.Random(seed), corpus)
    for change in CHANGES:
        for each in (b"", b"x", *corpus):
            change(random.Random(seed), bytearray(each), corpus)


def test_what_is_made_wrong_was_right() -> None:
    """Each frame of a corpus is one; few stay as they were."""
    for corpus, limits in ((device_frames(), CLOUD_LINK), (agent_frames(), GATEWAY_LINK), (peer_frames(), PEER_LINK)):
        _check_right(corpus, limits)
    for corpus in (device_frames(), agent_frames(), http_requests(80), token_messages()):
        rng = random.Random(1)
        assert sum(mutated(rng, corpus) in corpus for _ in range(500)) < 25


def _check_right(corpus: list[bytes], limits: LinkLimits) -> None:
    for each in corpus:
        if each[3] < FIRST:
            decode(each, limits)


def test_frames_of_websockets_have_their_length() -> None:
    """In one byte, two or eight, and a mask that changes nothing."""
    for size, head in ((5, 2), (126, 4), (65535, 4), (65536, 10)):
        data = framed(bytes(size))
        assert len(data) == head + 4 + size and data[1] & 0x80
