"""Whether units are read sooner coded than plain. Pure.

A plain byte of weights takes 1 / read seconds. A coded one takes share / read to be read, and beside that 1 / decode to
be decoded; of each second of decoding, computing loses as much as there is no spare core for.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decoding:
    """What was measured of decoding.

    Attributes:
        share: bytes in a file for each in memory.
        bytes_s: bytes of weights that one core decodes a second.
        lost: of a second of decoding, what computing loses, from 0 (a core is spare) to 1.
    """

    share: float
    bytes_s: float
    lost: float

    def __post_init__(self) -> None:
        if not (0 < self.share <= 1 and 0 <= self.bytes_s < float("inf") and 0 <= self.lost <= 1):
            raise ValueError(f"{self} is nothing that can be measured of decoding")


def lost_to_decoding(threads: int, cores: float) -> float:
    """Of a second of decoding, what computing with so many threads loses on so many cores."""
    return min(max(threads + 1 - cores, 0.0), 1.0)


def loaded_bytes_s(read_bytes_s: float, decoding: Decoding) -> float:
    """Bytes of weights a second that are read coded and decoded beside it."""
    return min(read_bytes_s / decoding.share, decoding.bytes_s)


def coded_pays(read_bytes_s: float, decoding: Decoding) -> bool:
    """Whether units are there sooner coded. read_bytes_s: of the disk; 0: unknown, so plain."""
    if read_bytes_s <= 0 or decoding.bytes_s <= 0:
        return False
    reading = decoding.share / read_bytes_s
    return max(reading + decoding.lost / decoding.bytes_s, 1 / decoding.bytes_s) < 1 / read_bytes_s
