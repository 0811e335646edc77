"""Frames of few sizes, where both sides have said so in their hellos: lengths then say little of what is in them. Pure.

    a frame as ``frames.py`` has it, ``PADDED`` being added to its number of tensors
    then    zeros
    last 4  how many bytes follow the frame, these four among them, little-endian

So that it is as long as one of a few *buckets*: powers of two, from 1 KiB or a row of hidden states on, each with the
few bytes that a frame has beside its rows. A short message is as long as one row then, and a row is not twice as long
as it was. Whoever reads a padded frame checks that it is of the one size that it has to be, and that nothing is hidden
in the zeros.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from wire.limits import FRAME_MARGIN_BYTES, ITEM_BYTES, LEAST_BUCKET_BYTES, LinkLimits

PADDED: Final = 0x40
"""Added to a frame's number of tensors."""

_KIND_AT: Final = 3
_COUNT: Final = struct.Struct("<I")


@dataclass(frozen=True)
class Padding:
    """The buckets of one connection.

    Attributes:
        least: bytes of the smallest, without the margin; a power of two.
        most: bytes of the longest frame, which is the last bucket.
    """

    least: int
    most: int

    @classmethod
    def of(cls, limits: LinkLimits, hidden_size: int = 0, dtype: str = "") -> Padding:
        """Those of a link that carries rows of ``hidden_size`` numbers, or none."""
        row = min(hidden_size * ITEM_BYTES.get(dtype, 0), limits.frame_bytes)
        return cls(_power(max(LEAST_BUCKET_BYTES, row)), limits.frame_bytes)

    def size(self, length: int) -> int:
        """Bytes of a frame of ``length`` once it is padded; as many where there is no room for that."""
        needed = length + _COUNT.size
        if needed > self.most:
            return length
        return min(_power(max(self.least, needed - FRAME_MARGIN_BYTES)) + FRAME_MARGIN_BYTES, self.most)

    def pad(self, data: bytearray) -> None:
        """Make a whole frame as long as its bucket; one that is as long as frames may be stays as it is."""
        count = self.size(len(data)) - len(data)
        if count:
            data[_KIND_AT] |= PADDED
            data += bytes(count - _COUNT.size) + _COUNT.pack(count)

    def whole(self, data: bytes | bytearray) -> int:
        """How many bytes of a padded frame are the frame itself.

        Raises ``ValueError`` where it is not padded as ``pad`` does it.
        """
        count = _COUNT.unpack_from(data, len(data) - _COUNT.size)[0] if len(data) >= _COUNT.size else 0
        if not _COUNT.size <= count < len(data):
            raise ValueError(f"{count} of its {len(data)} bytes are padding")
        length = len(data) - count
        if self.size(length) != len(data):
            raise ValueError(f"{length} bytes are padded to {len(data)}, and not to {self.size(length)}")
        if data.count(0, length, len(data) - _COUNT.size) != count - _COUNT.size:
            raise ValueError("its padding is not empty")
        return length


def _power(count: int) -> int:
    """The smallest power of two that is no less."""
    return 1 << (count - 1).bit_length()
