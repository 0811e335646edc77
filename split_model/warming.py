"""Which sizes of forwards a process computes before its first request, as far as there is time. Pure.

A forward of another size may need a kernel that the process has not had yet, or larger buffers; the first request
should not be the one that waits for them.
"""

from __future__ import annotations

from typing import Final

WARM_UP_S: Final = 3.0
"""Time for all of it: somebody waits for the start too."""

WARM_ROWS: Final = (1, 16, 2, 3, 4, 5, 6, 7, 8, 32, 64, 128, 256, 512)
"""Decoders, drafts and chunks of prompts; beyond 16 rows products have multiples of 16, which share kernels."""

FEW_ROWS: Final = 16
"""Forwards of up to so many rows take about as long as those of one: reading the weights."""


class Warming:
    """The sizes, one after the other.

    Args:
        most_rows: of one forward.
        began: when it began, in seconds of any monotonic clock.

    Attributes:
        until: when there is no more time.
        done: sizes that were handed out before.
    """

    def __init__(self, most_rows: int, began: float) -> None:
        self.until = began + WARM_UP_S
        self.done = 0
        self._rows = [rows for rows in WARM_ROWS if rows <= most_rows]
        self._handed_at = began

    def next(self, now: float) -> int | None:
        """The rows of the next forward, the one before having ended ``now``; None where it would take too long."""
        if self.done == len(self._rows):
            return None
        rows = self._rows[self.done]
        if self.done:
            longer = max(1.0, rows / max(self._rows[self.done - 1], FEW_ROWS))
            if now + (now - self._handed_at) * longer > self.until:
                return None
        self.done += 1
        self._handed_at = now
        return rows
