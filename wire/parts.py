"""Long frames on the way: a frame of more than ``PART_BYTES`` travels in parts, each a websocket message.

    offset  size  what
    0       2     b"TL"
    2       1     protocol version
    3       1     kind: first part, further part, or an end without the rest
    4       4     which of the frames that are under way it belongs to, little-endian
    8       4     number of this websocket message, as of every other
    12      4     bytes of the whole frame, little-endian; only in a first part
    then          bytes of the frame: ``PART_BYTES``, the last part what is left; none in an end without the rest

A first part says how much comes, so nothing is taken in that would be refused in the end, and memory is taken only as
parts come. Parts of several frames may mix, and whole frames pass between them. Pure.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from wire.errors import Code, ConnectionFailed
from wire.frames import MAGIC, PREFIX, bad_frame
from wire.limits import HALF_WITHIN_S, MAX_HALF_BYTES, MAX_HALF_FRAMES, PART_BYTES, PROTOCOL_VERSION, LinkLimits

FIRST: Final = 0xF1
FURTHER: Final = 0xF2
CUT_OFF: Final = 0xF3
"""The kinds; whole frames have their number of tensors there."""

_TOTAL: Final = struct.Struct("<I")


def goes_in_parts(size: int) -> bool:
    """Whether a frame of so many bytes does."""
    return size > PART_BYTES


def first_part(frame: int, data: memoryview) -> bytearray:
    """The first part of ``data``, which goes as number ``frame`` among those under way."""
    prefix = PREFIX.pack(MAGIC, PROTOCOL_VERSION, FIRST, frame, 0)
    return bytearray().join((prefix, _TOTAL.pack(len(data)), data[:PART_BYTES]))


def further_part(frame: int, data: memoryview, begin: int) -> bytearray:
    """The part of ``data`` that begins at byte ``begin``."""
    prefix = PREFIX.pack(MAGIC, PROTOCOL_VERSION, FURTHER, frame, 0)
    return bytearray().join((prefix, data[begin : begin + PART_BYTES]))


def cut_off(frame: int) -> bytearray:
    """What says that the rest of a frame will not come."""
    return bytearray(PREFIX.pack(MAGIC, PROTOCOL_VERSION, CUT_OFF, frame, 0))


@dataclass
class _Half:
    total: int
    heard_at: float
    parts: list[memoryview] = field(default_factory=list)
    came: int = 0


class Assembly:
    """Frames of one connection that have come in part."""

    def __init__(self, limits: LinkLimits) -> None:
        self._limits = limits
        self._half: dict[int, _Half] = {}
        """The one of which nothing has come for longest is the first."""
        self._announced = 0

    def __len__(self) -> int:
        return len(self._half)

    @property
    def held_bytes(self) -> int:
        """Bytes of them that are there."""
        return sum(half.came for half in self._half.values())

    def take(self, kind: int, frame: int, data: bytes | bytearray, now: float) -> bytes | None:
        """A part, of which only the prefix has been read; returns the frame that it completes, if it does.

        Raises:
            ConnectionFailed: ``too_large`` or ``bad_frame``; nothing of the part is kept.
        """
        begin = PREFIX.size
        if kind == FIRST:
            begin += _TOTAL.size
            if len(data) < begin:
                raise bad_frame("a part is shorter than its prefix")
            half = self._begin(frame, _TOTAL.unpack_from(data, PREFIX.size)[0], now)
        elif frame not in self._half:
            raise bad_frame("a part of a frame that has not begun")
        else:
            half = self._half.pop(frame)
        if kind == CUT_OFF:
            self._announced -= half.total
            if len(data) > begin:
                raise bad_frame("an end that has more behind it")
            return None
        piece = memoryview(data)[begin:]
        if len(piece) != min(PART_BYTES, half.total - half.came):
            raise bad_frame(f"a part of {len(piece)} bytes")
        half.parts.append(piece)
        half.came += len(piece)
        if half.came == half.total:
            self._announced -= half.total
            return b"".join(half.parts)
        half.heard_at = now
        self._half[frame] = half  # Behind all others: it was heard of last.
        return None

    def overdue_at(self) -> float | None:
        """When the first of them is taken for one that never comes; None where there is none."""
        return next((half.heard_at + HALF_WITHIN_S for half in self._half.values()), None)

    def _begin(self, frame: int, total: int, now: float) -> _Half:
        if frame in self._half:
            raise bad_frame("a frame that has begun already begins")
        if total <= PART_BYTES:
            raise bad_frame(f"a frame of {total} bytes has no parts")
        if total > self._limits.frame_bytes:
            raise ConnectionFailed(
                Code.TOO_LARGE, f"a frame of {total} bytes is to come, the limit is {self._limits.frame_bytes}"
            )
        if len(self._half) >= MAX_HALF_FRAMES or self._announced + total > MAX_HALF_BYTES:
            raise ConnectionFailed(Code.TOO_LARGE, "too much has begun to come and is not complete")
        self._announced += total
        return _Half(total, now)
