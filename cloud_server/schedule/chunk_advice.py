"""What one device is told about chunk sizes: when a session is opened, and again when conditions have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cloud_server.schedule.chunk_model import Conditions, chunk_rows, differs, first_rows
from cloud_server.schedule.chunk_search import schedule
from wire.limits import LEAST_CHUNK, MAX_CHUNKS
from wire.session_messages import Advice

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
        sizes: the chunks that its device is to make of the rows from ``begin`` on, as far as it has been told.
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
    """

    def __init__(self) -> None:
        self._default: list[int] = []
        self._prefills: dict[int, _Prefill] = {}
        self._schedules_left = SCHEDULES

    def default(self, conditions: Conditions) -> Advice | None:
        """Return the advice for prompts that have none of their own: the size of a chunk, and that of a first one. None
        where the device knows both. A device that has come is told them before anything else."""
        size = chunk_rows(conditions)
        sizes = [size, first_rows(conditions, size)]
        if self._default and not differs(self._default, sizes):
            return None
        self._default = sizes
        return Advice(sizes)

    def opened(self, session: int, prompt: int, conditions: Conditions) -> Advice | None:
        """Return what to tell of a session that begins, with ``prompt`` rows to come."""
        if not prompt:
            return None
        size = self._default[0]
        if not self._schedules_left:
            self._prefills[session] = _Prefill(prompt, [size] * min(-(-prompt // size), MAX_CHUNKS))
            return None
        if self._first(prompt) == prompt:
            return None  # All of it is cut when advice can come.
        self._schedules_left -= 1
        sizes = self._schedule(conditions, prompt, 0)
        self._prefills[session] = _Prefill(prompt, sizes, marks=_marks(conditions))
        return Advice(sizes, session)

    def closed(self, session: int) -> None:
        """Forget a session that is over, or past its prompt."""
        self._prefills.pop(session, None)

    def look_again(self, conditions: Conditions, position: Callable[[int], int | None]) -> Iterator[Advice | None]:
        """Give what to tell now that conditions may have changed, with a pause after every session for which there was
        something to do, so that others need not wait for all.

        Args:
            position: how far a session has come, None when it is over.
        """
        self._schedules_left = SCHEDULES
        yield self.default(conditions)
        marks = _marks(conditions)
        for session, prefill in list(self._prefills.items()):
            if self._prefills.get(session) is not prefill:
                continue  # Closed during a pause.
            begin = position(session)
            if begin is None or begin >= prefill.prompt:
                del self._prefills[session]
                continue
            if begin == prefill.position and _alike(marks, prefill.marks):
                continue
            sizes = self._schedule(conditions, prefill.prompt, begin)
            prefill.position, prefill.marks = begin, marks
            if differs(_ahead(prefill, begin), sizes):
                prefill.begin, prefill.sizes = begin, sizes
                yield Advice(sizes, session, begin)
            else:
                yield None

    def _schedule(self, conditions: Conditions, prompt: int, begin: int) -> list[int]:
        """Return the sizes for a prompt from row ``begin`` on, as many as one message holds."""
        first = [] if begin else [self._first(prompt)]
        rows = min(prompt - begin - sum(first), MAX_CHUNKS * conditions.cap_rows)
        return [*first, *schedule(conditions, rows)][:MAX_CHUNKS]

    def _first(self, prompt: int) -> int:
        """Return the rows of the first chunk. The device cuts it before any advice for this prompt can come, by the
        default that it has been told (see its ``Chunker``)."""
        size, first = self._default
        even = -(-prompt // -(-prompt // size))
        return first if even >= first + LEAST_CHUNK else even


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
