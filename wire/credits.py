"""Flow control: how much one session may have sent and not yet had answered. Pure.

Both ends keep a ``Window`` of the same size for each session. The sender waits while ``fits`` is false; the receiver
calls ``take`` for what arrives and treats an excess as an error. Every answer gives its rows back, so no message is
needed for credit alone.
"""

from __future__ import annotations


class Window:
    """Rows in flight of one session, at most ``limit``."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0

    def fits(self, rows: int) -> bool:
        """Whether ``rows`` more may be sent now."""
        return self.in_flight + rows <= self.limit

    def take(self, rows: int) -> bool:
        """Count ``rows`` as in flight; False, and nothing is counted, when they are more than the window has left."""
        if not self.fits(rows):
            return False
        self.in_flight += rows
        return True

    def give(self, rows: int) -> None:
        """``rows`` have been answered."""
        assert 0 <= rows <= self.in_flight, (rows, self.in_flight)
        self.in_flight -= rows
