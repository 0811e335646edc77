"""Coded weights: every bit comes back, in fewer bytes where they are weights, and damage is never taken for weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from split_model.offload.coding import BLOCK_WORDS, OF_NOTHING, STEP_WORDS, Damaged, Words, decode, encode

BETWEEN = np.empty(BLOCK_WORDS // 2, np.uint16)
PLACE = 0xFEDCBA9876543210


def decoded(piece: bytes, count: int, place: int = PLACE) -> Words:
    words = np.full(count, 0x5555, np.uint16)
    decode(np.frombuffer(piece, np.uint8), words, BETWEEN, place)
    return words


def normal(count: int, scale: float = 0.02, seed: int = 1) -> Words:
    drawn = np.random.default_rng(seed).standard_normal(count, np.float32) * np.float32(scale)
    words: Words = (drawn.view(np.uint32) >> 16).astype(np.uint16)
    return words


EVERY = np.arange(1 << 16, dtype=np.uint16)
"""All bfloat16 numbers: zeros, denormals, infinities and NaNs of both signs."""


@pytest.mark.parametrize(
    "words",
    [
        EVERY,
        np.random.default_rng(1).permutation(EVERY),
        np.zeros(STEP_WORDS, np.uint16),
        np.full(STEP_WORDS, 0xFFFF, np.uint16),
        np.where(np.arange(STEP_WORDS) % 2047 == 0, 0x7F80, 0x8000).astype(np.uint16),
        np.concatenate([normal(STEP_WORDS, 1e-30), normal(STEP_WORDS, 1e30)]),
        normal(2 * BLOCK_WORDS + STEP_WORDS),
    ],
    ids=["all", "all, mixed", "zeros", "nan", "far escapes", "two scales", "three blocks"],
)
def test_every_bit_comes_back(words: Words) -> None:
    """Of whatever numbers there are, with zeros behind the piece or without."""
    piece = encode(words, PLACE)
    for more in (b"", bytes(4096)):
        assert np.array_equal(decoded(piece + more, len(words)), words)


@settings(max_examples=60)
@given(st.binary(min_size=1, max_size=64), st.integers(0, 2**32 - 1), st.integers(0, 300), st.integers(1, 3))
def test_any_words_come_back(some: bytes, seed: int, gap: int, steps: int) -> None:
    """Weights among which any words stand, as near to one another or as far as can be."""
    words = normal(steps * STEP_WORDS, seed=seed)
    for number, byte in enumerate(some):
        words[(number * gap + byte) % len(words)] = byte << 8 | some[-1 - number]
    assert np.array_equal(decoded(encode(words, PLACE), len(words)), words)


@pytest.mark.parametrize("scale", [1e-3, 0.02, 1.0])
def test_weights_take_seven_tenths(scale: float) -> None:
    """Eleven bits of sixteen, and the escapes of a normal distribution."""
    words = normal(BLOCK_WORDS, scale)
    assert 11 / 16 < len(encode(words, PLACE)) / words.nbytes < 0.705


@settings(max_examples=60)
@given(st.data())
def test_damage_is_told(data: st.DataObject) -> None:
    """A byte that is another, bytes that were lost, an end that is missing: never any words."""
    words = normal(STEP_WORDS)
    piece = bytearray(encode(words, PLACE))
    at = data.draw(st.integers(0, len(piece) - 1))
    harm = data.draw(st.sampled_from(["byte", "lost", "cut", "longer"]))
    if harm == "byte":
        piece[at] ^= data.draw(st.integers(1, 255))
    elif harm == "lost":
        piece[at // 512 * 512 : at // 512 * 512 + 512] = bytes(len(piece[at // 512 * 512 : at // 512 * 512 + 512]))
    elif harm == "cut":
        del piece[at:]
    else:
        piece += b"\1" * 8
    with pytest.raises(Damaged):
        decoded(bytes(piece), len(words))


@pytest.mark.parametrize("count", [STEP_WORDS, 2 * BLOCK_WORDS])
def test_a_piece_that_was_lost_is_no_zeros(count: int) -> None:
    """Blocks that a disk has lost are read as zeros."""
    with pytest.raises(Damaged):
        decoded(bytes(len(encode(np.zeros(count, np.uint16), PLACE))), count)


@settings(max_examples=40)
@given(st.integers(0, 6), st.integers(0, 6))
def test_pages_that_were_swapped_are_told(one: int, other: int) -> None:
    """A disk that writes a page where another should be loses no bytes."""
    words = normal(20 * STEP_WORDS)
    piece = encode(words, PLACE)
    pages = [piece[begin : begin + 4096] for begin in range(0, len(piece), 4096)]
    pages[one], pages[other] = pages[other], pages[one]
    if one == other:
        assert np.array_equal(decoded(b"".join(pages), len(words)), words)
    else:
        with pytest.raises(Damaged, match="checksum"):
            decoded(b"".join(pages), len(words))


@given(st.integers(0, 63))
def test_a_piece_of_another_place_is_told(bit: int) -> None:
    """Whichever bit its place differs in."""
    words = normal(STEP_WORDS)
    with pytest.raises(Damaged, match="checksum"):
        decoded(encode(words, PLACE), len(words), PLACE ^ 1 << bit)


def test_pieces_of_other_lengths_are_refused() -> None:
    """One of more words, or of fewer, with a right checksum."""
    words = normal(2 * STEP_WORDS)
    for count in (STEP_WORDS, 3 * STEP_WORDS):
        with pytest.raises(Damaged):
            decoded(encode(words, PLACE), count)


@settings(max_examples=80)
@given(st.binary(max_size=6000))
def test_whatever_has_a_right_checksum_is_refused_or_words(some: bytes) -> None:
    """Nothing but `Damaged` comes of bytes that nobody has encoded."""
    blocks = some + bytes(-len(some) % 8)
    words = np.frombuffer(blocks := b"\xff" * 16 + blocks, "<u8")
    pages = [np.add.reduce(page, dtype=np.uint64) for page in np.split(words, range(512, len(words), 512))]
    total = sum(int(page) * (2 * number + 1) for number, page in enumerate(pages)) % 2**64 ^ int(OF_NOTHING) ^ PLACE
    with pytest.raises(Damaged, match=r"^(?!the checksum)"):
        decoded(total.to_bytes(8, "little") + blocks, STEP_WORDS)
        raise Damaged
