"""What a loader has done."""

from __future__ import annotations

import operator
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class LoadCounts:
    """What a loader has done since it was opened; two of them can be added and subtracted.

    Attributes:
        bytes_read: from the disk.
        reading_s: that the reader read.
        waited_s: that whoever computes waited for it: what was not hidden.
        uses: of units.
        decoding_s: that what was read was decoded, beside reading.
    """

    bytes_read: int = 0
    reading_s: float = 0.0
    waited_s: float = 0.0
    uses: int = 0
    decoding_s: float = 0.0

    def __add__(self, other: LoadCounts) -> LoadCounts:
        return LoadCounts(*map(operator.add, astuple(self), astuple(other)))

    def __sub__(self, other: LoadCounts) -> LoadCounts:
        return LoadCounts(*map(operator.sub, astuple(self), astuple(other)))

    @property
    def hidden(self) -> float:
        """The share of the reading that nobody waited for, from 0 to 1."""
        return max(0.0, 1 - self.waited_s / self.reading_s) if self.reading_s else 1.0
