"""LIME's transfer of keys and values: which rows of a member's cache lie at another, which has room. Pure.

Eq. 8 and Algorithm 2 as they must be meant. What moves is a prefix: the oldest rows, which never change, so that a row
that is written is always the member's own. A row is copied first, and deleted where it came from only when the other
side has said that it has it: at any time it is at one place at least. One transfer is under way at a time. So nothing
waits for anything but a transfer's end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor
from typing import Literal

LEAST_ROWS = 8
"""A change by fewer rows is not worth a transfer: n_ts of Algorithm 2."""


@dataclass(frozen=True)
class Moved:
    """Where the rows of a member's cache are, oldest first.

    Attributes:
        rows: all of them.
        away: the oldest so many are at the other member alone.
        sending: so many behind them are being copied there; the member still has them.
        returning: the last so many of those away are being copied back; the other still has them.
    """

    rows: int
    away: int = 0
    sending: int = 0
    returning: int = 0

    @property
    def here(self) -> int:
        """Rows that the member has memory for: also those that are under way."""
        return self.rows - self.away + self.returning

    @property
    def there(self) -> int:
        """The same of the other."""
        return self.away + self.sending


@dataclass(frozen=True)
class Copy:
    """Rows that are to be copied now: to the other member ("out"), or back."""

    way: Literal["out", "back"]
    rows: range


@dataclass(frozen=True)
class Drop:
    """Rows that have come, and are to be deleted where they came from: at the member ("here") or at the other."""

    place: Literal["here", "there"]
    rows: range


def rows_worth(uncovered_s: float, bytes_s: float, row_bytes: int, rows: int) -> int:
    """How many rows of one segment should be away: Eq. 8, for whole rows and no more than there are.

    uncovered_s: seconds of the segment's reads that neither computing nor links cover; 0 or less: nothing should move.
    bytes_s: of the link, as it is now.
    """
    return min(max(floor(max(uncovered_s, 0.0) * bytes_s / row_bytes), 0), rows)


def decided(
    state: Moved, worth: int, room_here: int, room_there: int, until_threshold: int
) -> tuple[Moved, Copy | None]:
    """What to begin now.

    Where fewer should be away than are, they come back at once: fetching them for a step would take longer than it is
    worth. More go only when the member's next threshold is near, since until then they bring nothing.

    worth: see `rows_worth`. room_here, room_there: rows that find memory beside those that are there; the other's is up
    to its own next threshold. until_threshold: rows until the member's own.
    """
    if state.sending or state.returning:
        return state, None
    more = min(worth, state.rows) - state.away
    if more <= -LEAST_ROWS:
        back = min(-more, room_here)
        if back < 1:
            return state, None
        return replace(state, returning=back), Copy("back", range(state.away - back, state.away))
    if more >= LEAST_ROWS and until_threshold <= LEAST_ROWS:
        out = min(more, room_there)
        if out < 1:
            return state, None
        return replace(state, sending=out), Copy("out", range(state.away, state.away + out))
    return state, None


def arrived(state: Moved) -> tuple[Moved, Drop]:
    """The other side has said that it has all that was under way. Raises ValueError where nothing was."""
    if state.sending:
        away = state.away + state.sending
        return replace(state, away=away, sending=0), Drop("here", range(state.away, away))
    if state.returning:
        away = state.away - state.returning
        return replace(state, away=away, returning=0), Drop("there", range(away, state.away))
    raise ValueError("nothing was under way")


def given_up(state: Moved) -> Moved:
    """What was under way did not come: rows are where they were, and what has come of them is dropped."""
    return replace(state, sending=0, returning=0)


def grown(state: Moved, rows: int) -> Moved:
    """So many new rows, which are the member's own."""
    return replace(state, rows=state.rows + rows)
