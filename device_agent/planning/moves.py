"""LIME's transfer of keys and values: which rows of a member's cache lie at another, which has room. Pure.

Eq. 8 and Algorithm 2 as they must be meant. What moves is a prefix: the oldest rows, which never change, so that a row
that is written is always the member's own. A row is copied first, and deleted where it came from only when the other
side has said that it has it: at any time it is at one place at least. One transfer is under way at a time. So nothing
waits for anything but a transfer's end.

What is away is attended to where it lies. That takes as long for few rows of a layer as for many, so Eq. 8 says of how
many layers rows may be away, and of these all go before the next one's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import floor
from statistics import median
from typing import Final, Literal

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


@dataclass(frozen=True)
class Transfer:
    """Of a member: at whom its oldest keys and values may lie.

    Attributes:
        target: the other member.
        bytes_s, rtt_s: of the link there, when it was planned.
        uncovered_s: seconds of a step in which it waits for its disk, by the steps of relief that it has taken then,
            from none on; with more steps as with the last.
        fetches: whether they come back for each use, as the paper has it; else they are attended to where they lie.
    """

    target: int
    bytes_s: float
    rtt_s: float
    uncovered_s: tuple[float, ...]
    fetches: bool = False

    def uncovered(self, level: int) -> float:
        """After so many steps of relief."""
        return self.uncovered_s[min(level, len(self.uncovered_s) - 1)]


TAKEN: Final = 5
"""The median of so many questions says how fast a link is: a drop shows within one step, a hiccup does not."""


@dataclass
class LinkPace:
    """How long a question takes to the other member and its answer back, by those that were asked."""

    bytes_s: float
    rtt_s: float
    _times: deque[float] = field(default_factory=lambda: deque(maxlen=TAKEN))

    def took(self, size: int, seconds: float) -> None:
        """A question and its answer, so many bytes together."""
        self._times.append(seconds / self._planned(size))

    def seconds(self, size: int) -> float:
        """What the next will take."""
        return self._planned(size) * (median(self._times) if self._times else 1.0)

    def _planned(self, size: int) -> float:
        return self.rtt_s + size / self.bytes_s


MARGIN: Final = 1.25
"""More rows go only where questions might take so many times as long."""


def layers_worth(uncovered_s: float, layer_s: float, layers: int) -> int:
    """Of how many of a member's layers rows should be away: Eq. 8, where they are attended to as they lie.

    uncovered_s: seconds of a step's reads that neither computing nor links cover; 0 or less: nothing should move.
    layer_s: what a layer's question takes, with the link as it is now.
    """
    return min(max(floor(max(uncovered_s, 0.0) / layer_s), 0), layers)


def decided(
    state: Moved, worth: int, room_here: int, room_there: int, until_threshold: int
) -> tuple[Moved, Copy | None]:
    """What to begin now.

    Where fewer should be away than are, they come back at once: fetching them for a step would take longer than it is
    worth. More go only when the member's next threshold is near, since until then they bring nothing.

    worth: how many rows should be away. room_here, room_there: rows that find memory beside those that are there; the
    other's is up to its own next threshold. until_threshold: rows until the member's own.
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


Key = tuple[int, int]
"""A layer, by its turn, and a session."""


def next_copy(
    states: Mapping[Key, Moved], worth: tuple[int, int], most_here: int, room_there: int, until_threshold: int
) -> tuple[Key, Moved, Copy] | None:
    """What to begin now of all sessions' rows in all layers: one copy, or nothing.

    worth: of how many layers rows may stay away, and of how many more may go; these are fewer, lest they come back
    where a link is as fast as ever but for a little. most_here: rows of one copy at most. room_there: of one that goes
    to the other. until_threshold: see `decided`.
    """
    if any(state.sending or state.returning for state in states.values()):
        return None
    for key in sorted(states, reverse=True):
        away = states[key].away
        if away and key[0] >= worth[0]:  # All of them: a few are asked for as long as many.
            back = min(away, most_here)
            return key, replace(states[key], returning=back), Copy("back", range(away - back, away))
    for key in sorted(states):
        if key[0] < worth[1]:
            old = max(states[key].rows - LEAST_ROWS, states[key].away)
            state, copy = decided(states[key], old, most_here, min(room_there, most_here), until_threshold)
            if copy is not None:
                return key, state, copy
    return None
