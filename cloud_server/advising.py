"""What one device is told about chunk sizes: when a session is opened, and again when conditions have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cloud_server.advice import Conditions, chunk_rows, differs
from cloud_server.schedules import schedule
from wire.limits import FIRST_CHUNK, LEAST_CHUNK, MAX_CHUNKS
from wire.messages import Advice, LinkState

SCHEDULES = 4
"""Sessions that get a schedule as soon as they are opened, between two looks; others follow the default till then."""

DRIFT = 0.05
"""Conditions of which nothing has changed by a larger part than this have hardly another schedule."""

_ROWS = (1, 64, 512)
_END = 4096
"""Rows of the chunks by whose times conditions are compared, and the position where they end."""


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
        if not prompt:
            return
        size = self._default[0]
        if not self._schedules_left:
            self._prefills[session] = _Prefill(prompt, [size] * min(-(-prompt // size), MAX_CHUNKS))
            return
        conditions = self._now()
        if _first_rows(conditions, prompt, size) == prompt:
            return  # All of it is cut when advice can come.
        self._schedules_left -= 1
        sizes = self._schedule(conditions, prompt, 0)
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
            sizes = self._schedule(conditions, prefill.prompt, begin)
            prefill.position, prefill.marks = begin, marks
            if differs(_ahead(prefill, begin), sizes):
                prefill.begin, prefill.sizes = begin, sizes
                self._post(Advice(sizes, session, begin))
            yield

    def _schedule(self, conditions: Conditions, prompt: int, begin: int) -> list[int]:
        """What one message holds of the schedule for a prompt from row ``begin`` on, without rows beyond it at any
        size."""
        first = [] if begin else [_first_rows(conditions, prompt, self._default[0])]
        begin += sum(first)
        rows = min(prompt - begin, MAX_CHUNKS * conditions.cap_rows)
        return [*first, *schedule(conditions, rows, begin)][:MAX_CHUNKS]

    def _now(self) -> Conditions:
        return self._conditions(self.link.up_bytes_s or None)

    def _advise_default(self, conditions: Conditions) -> None:
        sizes = [chunk_rows(conditions)]
        if not self._default or differs(self._default, sizes):
            self._default = sizes
            self._post(Advice(sizes))


def _first_rows(conditions: Conditions, prompt: int, default: int) -> int:
    """Rows of the first chunk, which the device has cut before any advice can come: see its ``chunking``."""
    even = -(-prompt // -(-prompt // default))
    hidden = conditions.up_bytes_s is None or prompt * conditions.row_s > conditions.g(1)
    return FIRST_CHUNK if hidden and even >= FIRST_CHUNK + LEAST_CHUNK else even


def _marks(conditions: Conditions) -> tuple[float, ...]:
    """The times that a schedule follows from."""
    row_s = 0.0 if conditions.up_bytes_s is None else conditions.row_s
    attended_s = conditions.attention_s(_END)
    steps_s = (conditions.g(conditions.mu + rows) + attended_s - conditions.attention_s(_END - rows) for rows in _ROWS)
    return row_s, conditions.wait_s, *steps_s


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
