"""Bytes that were right once: changed, cut, doubled and joined to others by chance. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

MOST_CHANGES: Final = 4
EXTREMES: Final = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31, 2**32 - 1)
"""Numbers that lengths and counts are easily wrong about."""

INSERTED: Final = 16
"""Bytes that are put in at once, at most."""

Change = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def mutated(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One of ``corpus``, changed in one place or some."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(1, MOST_CHANGES)):
        rng.choice(CHANGES)(rng, data, corpus)
    return bytes(data)


def _flip(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _replace(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _number(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    size = rng.choice((1, 2, 4, 8))
    at = rng.randrange(max(1, len(data) - size + 1))
    value = rng.choice(EXTREMES) % 2 ** (8 * size)
    data[at : at + size] = value.to_bytes(size, rng.choice(("little", "big")))


def _cut(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _insert(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.randint(1, INSERTED))


def _double(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    begin, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    data[end:end] = data[begin:end]


def _delete(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    begin, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    del data[begin:end]


def _splice(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    other = rng.choice(corpus)
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]


CHANGES: Final[tuple[Change, ...]] = (_flip, _replace, _number, _cut, _insert, _double, _delete, _splice)
