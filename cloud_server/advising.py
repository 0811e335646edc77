"""What one device is told about chunk sizes: when a session is opened, and again when conditions have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cloud_server.advice import Conditions, chunk_rows, differs, schedule
from wire.limits import MAX_CHUNKS
from wire.messages import Advice, LinkState

SCHEDULES = 4
"""Sessions that get a schedule as soon as they are opened, between two looks; others follow the default till then."""

DRIFT = 0.05
"""Conditions of which nothing has changed by a larger part than this have hardly another schedule."""

_ROWS = (1, 64, 512)
"""Rows of the chunks by whose times conditions are compared."""


@dataclass
class _Prefill:
    """A prompt under way.

    Attributes:
        prompt: its rows.
        sizes: the chunks that its device makes of the rows from ``begin`` on, as far as it has been told.
        position: where it stood when that was last looked at.
        marks: what the sizes were chosen for, as ``_marks`` has it; empty where nobody has chosen them.
    """

    prompt: int
    sizes: list[int]
    begin: int = 0
    position: int = 0
    marks: tuple[float, ...] = ()


class Advising:
    """The advice given to one device.

    A schedule takes some milliseconds of the event loop, so how many there are is not left to the device.

    Args:
        conditions: the present ones for a device with an upload bandwidth in bytes a second, None while unknown.
        post: sends a piece of advice.
    """

    def __init__(self, conditions: Callable[[float | None], Conditions], post: Callable[[Advice], None]) -> None:
        self.link = LinkState(0, 0)
        self._conditions = conditions
        self._post = post
        self._default: list[int] = []
        self._prefills: dict[int, _Prefill] = {}
        self._schedules_left = SCHEDULES

    def connected(self) -> None:
        """A device has come: tell it the one size for prompts that have no advice of their own."""
        self._advise_default(self._now())

    def measured(self, link: LinkState) -> None:
        """A device has told what it measures."""
        self.link = link

    def opened(self, session: int, prompt: int) -> None:
        """A session begins, with ``prompt`` rows to come."""
        if not self._schedules_left:
            size = self._default[0]
            self._prefills[session] = _Prefill(prompt, [size] * min(-(-prompt // size), MAX_CHUNKS))
            return
        conditions = self._now()
        if prompt <= chunk_rows(conditions):
            return  # One chunk, as the default says too.
        self._schedules_left -= 1
        sizes = _schedule(conditions, prompt)
        self._prefills[session] = _Prefill(prompt, sizes, marks=_marks(conditions))
        self._post(Advice(sizes, session))

    def closed(self, session: int) -> None:
        """A session is over, or past its prompt."""
        self._prefills.pop(session, None)

    def look_again(self, position: Callable[[int], int | None]) -> Iterator[None]:
        """Tell whatever has changed by enough; ``position`` gives how far a session has come, None when it is over.

        Pauses after every session for which there was something to do, so that others need not wait for all.
        """
        self._schedules_left = SCHEDULES
        conditions = self._now()
        self._advise_default(conditions)
        marks = _marks(conditions)
        yield
        for session, prefill in list(self._prefills.items()):
            if self._prefills.get(session) is not prefill:
                continue  # Closed during a pause.
            begin = position(session)
            if begin is None or begin >= prefill.prompt:
                del self._prefills[session]
                continue
            if begin == prefill.position and _alike(marks, prefill.marks):
                continue
            sizes = _schedule(conditions, prefill.prompt - begin)
            prefill.position, prefill.marks = begin, marks
            if differs(_ahead(prefill, begin), sizes):
                prefill.begin, prefill.sizes = begin, sizes
                self._post(Advice(sizes, session, begin))
            yield

    def _now(self) -> Conditions:
        return self._conditions(self.link.up_bytes_s or None)

    def _advise_default(self, conditions: Conditions) -> None:
        sizes = [chunk_rows(conditions)]
        if not self._default or differs(self._default, sizes):
            self._default = sizes
            self._post(Advice(sizes))


def _schedule(conditions: Conditions, rows: int) -> list[int]:
    """What one message holds of the schedule for ``rows`` rows; rows that are beyond it at any size are left out."""
    return schedule(conditions, min(rows, MAX_CHUNKS * conditions.cap_rows))[:MAX_CHUNKS]


def _marks(conditions: Conditions) -> tuple[float, ...]:
    """The times that a schedule follows from."""
    row_s = 0.0 if conditions.up_bytes_s is None else conditions.row_s
    return row_s, conditions.wait_s, *(conditions.g(conditions.mu + rows) for rows in _ROWS)


def _alike(ones: tuple[float, ...], others: tuple[float, ...]) -> bool:
    return len(ones) == len(others) and all(
        abs(one - other) <= DRIFT * max(one, other) for one, other in zip(ones, others, strict=True)
    )


def _ahead(prefill: _Prefill, position: int) -> list[int]:
    """What of its sizes lies behind ``position``: none where the device has been told none that reach so far."""
    ahead: list[int] = []
    passed = position - prefill.begin
    for size in prefill.sizes:
        if size > passed:
            ahead.append(size - max(passed, 0))
        passed -= size
    return ahead
