"""The decoder's thread: whatever goes wrong with a piece, it is said, and the next is decoded."""

from __future__ import annotations

import threading

import numpy as np

from split_model.offload.coding import STEP_WORDS, encode
from split_model.offload.decoder import Decoder
from split_model.offload.file_pieces import Piece

WORDS = np.arange(STEP_WORDS, dtype=np.uint16)


def test_a_failure_of_any_kind_is_told_and_gives_the_room_back() -> None:
    """Memory that no words fit into, three times, with two rooms; then a piece comes out right."""
    decoder, said, told = Decoder(), list[Exception | None](), threading.Semaphore(0)
    words, found = encode(WORDS, place=7), np.zeros_like(WORDS)

    def done(seconds: float, damage: Exception | None) -> None:
        said.append(damage)
        told.release()

    for into in (memoryview(bytearray(3)), memoryview(bytearray(3)), memoryview(bytearray(3)), found.data.cast("B")):
        room = decoder.room()
        room[: len(words)] = words
        decoder.decode(room, Piece(0, 0, WORDS.nbytes, 0, len(words), place=7), into, done)
        assert told.acquire(timeout=10)
    decoder.close()
    assert [type(each) for each in said] == [ValueError] * 3 + [type(None)]
    assert np.array_equal(found, WORDS)
