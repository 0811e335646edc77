"""bfloat16 weights in some 30 % fewer bytes, every bit of them kept, and decoded faster than disks read. Pure.

Signs and mantissas of weights are noise; nearly all exponents of a matrix are among eight that follow one another. So a
*block* of words has, one behind the other:

- a head of four uint32: its *base*, the first of the eight exponents, how many *escapes* it has, and two zeros;
- signs and mantissas as they are, those of two words in one of 16 bits: of word i where they always are, of word
  i + n / 2 with its bytes swapped;
- three bits a word, exponent less base, of sixteen runs of n / 16 words each: of five runs in the bits from 1, 4, 7, 10
  and 13 on of one array, and of the last run one bit in bit 0 of each of the three arrays;
- escapes: words with any other exponent. Of each a byte with how many words it is behind the one before (255 where it
  is farther, then comes another that changes nothing), then of each a byte with exponent XOR base; zeros up to a
  multiple of 8 bytes.

A *piece* is a checksum and its blocks. All is little-endian. The checksum is the sum of the 64-bit words behind it, of
the n-th page of them times 2 n + 1, XOR a constant XOR the piece's *place*, a number that no other piece has: so pages
and pieces that a disk has swapped are told, too.
Decoding is some fifty operations of NumPy on a whole block, which let go of the interpreter. float32 numbers that are
bfloat16 ones, their lower halves zeros, are coded as these, and widened behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint16]
Wide = NDArray[np.uint32]

BLOCK_WORDS: Final = 1 << 19
"""With fewer, calling NumPy takes longer than computing; with more, they are not in the CPU's caches."""

STEP_WORDS: Final = 1024
"""A block has a multiple of so many: a page of float32 numbers, so nothing of a unit has to be cut otherwise."""

_RUNS: Final = 16
_OF_ARRAY: Final = 5
_HEAD_BYTES: Final = 16
_SUM_BYTES: Final = 8
_LOW, _EXPONENT = 7, 0xFF
_SIGN_AND_MANTISSA: Final = np.uint16(0x807F)
_CODE: Final = np.uint16(7 << _LOW)
_FARTHEST: Final = 255
_PAGE_WORDS: Final = 512
OF_NOTHING: Final = np.uint64(0x7472696C62790001)
"""So that bytes that were lost, and are read as zeros, have another checksum."""


class Damaged(ValueError):
    """These bytes are not what `encode` has made of so many words."""


def encode(words: Words, place: int) -> bytes:
    """A piece. words [n], n a multiple of `STEP_WORDS`; the bits of bfloat16 numbers, whatever they are. place: of the
    piece, 64 bits."""
    blocks = b"".join(_encoded(words[begin:end]) for begin, end in _spans(len(words)))
    return _checksum(np.frombuffer(blocks, np.uint8), place) + blocks


def decode(piece: NDArray[np.uint8], words: Words, between: Words, place: int) -> None:
    """The words of a piece, into `words` [n]. piece: with zeros behind it or without. between [BLOCK_WORDS / 2]: is
    written over.

    Raises Damaged, with anything in `words`, for whatever was not made by `encode` of n words for that place, as far as
    the checksum tells.
    """
    _decode(piece, len(words), place, lambda view, begin, end: _decoded(view, words[begin:end], between))


def decode_wide(piece: NDArray[np.uint8], wide: Wide, block: Words, between: Words, place: int) -> None:
    """The same as the bits of float32 numbers, into `wide` [n]. block [BLOCK_WORDS], between: are written over."""

    def decoded(view: NDArray[np.uint8], begin: int, end: int) -> int:
        words, found = block[: end - begin], wide[begin:end]
        used = _decoded(view, words, between)
        found[:] = words
        np.left_shift(found, 16, out=found)
        return used

    _decode(piece, len(wide), place, decoded)


def narrowed(wide: Wide) -> Words | None:
    """The words of which `decode_wide` makes these; None where there are none."""
    halves = wide.view("<u2")
    return None if halves[0::2].any() else np.ascontiguousarray(halves[1::2])


def _decode(
    piece: NDArray[np.uint8], count: int, place: int, decoded: Callable[[NDArray[np.uint8], int, int], int]
) -> None:
    """decoded: makes the words from one place to another, of what a piece has from there on, and says what it used."""
    view = piece[_SUM_BYTES : len(piece) // 8 * 8]
    if len(piece) < _SUM_BYTES or len(piece) % 8 or _checksum(view, place) != piece[:_SUM_BYTES].tobytes():
        raise Damaged("the checksum of coded weights is wrong")
    for begin, end in _spans(count):
        view = view[decoded(view, begin, end) :]
    if view.any():
        raise Damaged("there is more than the coded weights")


def _spans(count: int) -> Iterator[tuple[int, int]]:
    assert count % STEP_WORDS == 0
    return ((begin, min(begin + BLOCK_WORDS, count)) for begin in range(0, count, BLOCK_WORDS))


def _checksum(blocks: NDArray[np.uint8], place: int) -> bytes:
    words = blocks.view("<u8")
    pages = np.add.reduceat(words, np.arange(0, len(words), _PAGE_WORDS)) if len(words) else words
    total = np.dot(pages, np.arange(1, 2 * len(pages), 2, dtype=np.uint64)) ^ OF_NOTHING ^ np.uint64(place)
    return np.array(total, "<u8").tobytes()


def _encoded(words: Words) -> bytes:
    count = len(words)
    exponents = words >> _LOW & _EXPONENT
    within = np.convolve(np.bincount(exponents, minlength=_EXPONENT + 1), np.ones(8, np.int64), "valid")
    base = np.uint16(within.argmax())
    escaped = (exponents < base) | (exponents >= base + 8)
    codes = np.where(escaped, 0, exponents - base).astype(np.uint16).reshape(_RUNS, -1)
    kept = words & _SIGN_AND_MANTISSA
    signs = kept[: count // 2] | kept[count // 2 :].byteswap()
    arrays = np.zeros((3, count // _RUNS), np.uint16)
    for run, of_run in enumerate(codes[:-1]):
        arrays[run // _OF_ARRAY] |= of_run << _bit(run)
    for bit, array in enumerate(arrays):
        array |= codes[-1] >> bit & 1
    gaps, changes = _escapes(np.flatnonzero(escaped), (exponents[escaped] ^ base).astype(np.uint8))
    head = np.array([base, len(gaps), 0, 0], "<u4")
    found = b"".join(
        each.astype(each.dtype.newbyteorder("<")).tobytes() for each in (head, signs, arrays, gaps, changes)
    )
    return found + bytes(-len(found) % 8)


def _escapes(places: NDArray[Any], changes: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Gaps and changes, with those between that change nothing."""
    behind = np.diff(places, prepend=0)
    more = np.maximum(behind - 1, 0) // _FARTHEST
    own = np.cumsum(more + 1) - 1
    total = len(places) + int(more.sum())
    gaps, all_changes = np.full(total, _FARTHEST, np.uint8), np.zeros(total, np.uint8)
    gaps[own], all_changes[own] = behind - _FARTHEST * more, changes
    return gaps, all_changes


def _decoded(view: NDArray[np.uint8], words: Words, between: Words) -> int:
    """One block's words; how many bytes it has."""
    count = len(words)
    signs_end = _HEAD_BYTES + count
    arrays_end = signs_end + 3 * count // 8
    if len(view) < arrays_end:
        raise Damaged("coded weights end too early")
    base, escapes, *zeros = view[:_HEAD_BYTES].view("<u4").tolist()
    end = arrays_end + 2 * escapes
    if base > _EXPONENT - 7 or any(zeros) or len(view) < end:
        raise Damaged("coded weights have a head that cannot be")
    _add_signs(view[_HEAD_BYTES:signs_end].view("<u2"), words, between)
    words += np.uint16(base << _LOW)
    _add_codes(view[signs_end:arrays_end].view("<u2").reshape(3, -1), words.reshape(_RUNS, -1), between)
    if escapes:
        places = np.cumsum(view[arrays_end : arrays_end + escapes], dtype=np.intp)
        if places[-1] >= count:
            raise Damaged("an escape is behind the coded weights")
        words[places] ^= view[arrays_end + escapes : end].astype(np.uint16) << _LOW
    return int(end + -end % 8)


def _add_signs(signs: Words, words: Words, between: Words) -> None:
    half = len(signs)
    first, second, swapped = words[:half], words[half:], between[:half]
    np.right_shift(signs, 8, out=second)
    np.left_shift(signs, 8, out=swapped)
    np.bitwise_or(second, swapped, out=second)
    np.bitwise_and(second, _SIGN_AND_MANTISSA, out=second)
    np.bitwise_and(signs, _SIGN_AND_MANTISSA, out=first)


def _add_codes(arrays: Words, runs: Words, between: Words) -> None:
    codes = between[: arrays.shape[1]]
    for run, words in enumerate(runs[:-1]):
        # Shifted so that the code lies where a word has its exponent's lowest bits.
        bit, array = _bit(run), arrays[run // _OF_ARRAY]
        if bit < _LOW:
            np.left_shift(array, _LOW - bit, out=codes)
        else:
            np.right_shift(array, bit - _LOW, out=codes)
        np.bitwise_and(codes, _CODE, out=codes)
        np.add(words, codes, out=words)
    for bit, array in enumerate(arrays):
        np.bitwise_and(array, 1, out=codes)
        np.left_shift(codes, _LOW + bit, out=codes)
        np.add(runs[-1], codes, out=runs[-1])


def _bit(run: int) -> int:
    return 1 + 3 * (run % _OF_ARRAY)
