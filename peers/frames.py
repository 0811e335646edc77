"""What goes over a link between two members: a header, and behind it the payload as it lies in memory. Pure.

A header says what its payload is, so that whoever reads it knows where in memory it belongs before the first byte of it
is read. Nothing is taken for it that the reader has not asked for, or has room set aside for: see ``inbox.py``.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from wire.errors import Code, ConnectionFailed

_HEADER: Final = struct.Struct("!B3xIIIQ")

HEADER_BYTES: Final = _HEADER.size

MOST_BYTES: Final = 2**30
"""Of one payload: more than any tile has."""

MOST_EPOCH: Final = 2**32 - 1

NUMBERS: Final = 2**32
"""Collectives, and the frames of a tag, are numbered below it. The last comes after days of decoding; behind it comes 0
again."""


class Kind(IntEnum):
    """What a frame is. From ``PULSE`` on it has no payload."""

    SEND = 1
    """From one member to another: ``tag`` is the caller's, ``part`` counts the frames of this tag."""
    GATHER = 2
    """A tile as it is: ``tag`` is the number of the collective, ``part`` that of the tile."""
    REDUCE = 3
    """A tile of a sum that is not whole yet; numbered like ``GATHER``."""
    PULSE = 16
    """Who sends it is alive."""
    TURN = 17
    """Who sends it has ended all earlier epochs; ``epoch`` is the new one."""
    LEAVE = 18
    """Who sends it has said all it had to say, and goes."""
    LOST = 19
    """Member ``tag`` is gone, for whoever sends it."""


class PeerFrame(NamedTuple):
    """A header. ``length``: bytes of payload behind it."""

    kind: Kind
    epoch: int
    tag: int = 0
    part: int = 0
    length: int = 0


def pack(frame: PeerFrame) -> bytes:
    """Its ``HEADER_BYTES``."""
    return _HEADER.pack(*frame)


def unpack(data: bytes | bytearray | memoryview) -> PeerFrame:
    """The header in ``HEADER_BYTES`` bytes. Raises ``ConnectionFailed`` where they are none."""
    kind, *rest = _HEADER.unpack(data)
    try:
        frame = PeerFrame(Kind(kind), *rest)
    except ValueError:
        raise ConnectionFailed(Code.BAD_FRAME, f"a frame of kind {kind}, which there is not") from None
    if frame.length > (MOST_BYTES if frame.kind < Kind.PULSE else 0):
        raise ConnectionFailed(Code.TOO_LARGE, f"a frame of kind {frame.kind.name} with {frame.length} bytes")
    return frame
