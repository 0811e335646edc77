"""Sessions as devices ask for them: opened, resumed, kept and ended. What they wait for, the engine computes.

Everything here runs on the event loop, and none of it is long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import torch

from cloud_server.gathering import Gathering
from cloud_server.ledger import Key, Ledger, State
from cloud_server.metrics import CloudMetrics
from cloud_server.scheduler import Scheduler
from wire.errors import Code, SessionFailed

RETRY_AFTER_S = 1.0
"""What a device is told to wait while the stages are being started."""


@dataclass(frozen=True)
class Answer:
    """A completed forward: ``rows`` is ``[want, hidden]``, None when nothing was wanted; the times are those of the
    step that ran its last row, and of the wait before it."""

    rows: torch.Tensor | None
    queue_s: float
    step_s: float
    step_rows: int


Deliver = Callable[[int, "Answer | SessionFailed"], None]
"""Called on the event loop with a forward's sequence number and what became of it, or with -1 and why the whole session
has ended; must not raise."""


@dataclass
class Waiting:
    """A forward that is not answered: rows ``hidden``, the last ``want`` of their outputs as far as they are there."""

    hidden: torch.Tensor
    want: int
    arrived: float
    parents: Sequence[int] | None = None
    outputs: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Session:
    """A session's rows: those in its pages, and the forwards that wait, by their numbers."""

    deliver: Deliver
    length: int = 0
    """Positions whose keys and values are in the pages, once the steps under way are done."""
    done: int = 0
    """Positions whose keys and values are there now."""
    waiting: dict[int, Waiting] = field(default_factory=dict)


class Sessions:
    """All sessions and their work that waits.

    Args:
        ledger: the rules of admission and order, and the pages.
    """

    def __init__(self, ledger: Ledger, metrics: CloudMetrics) -> None:
        self.ledger = ledger
        self._metrics = metrics
        self._scheduler = Scheduler[Key]()
        self._gathering = Gathering[Key]()
        self._sessions: dict[Key, Session] = {}
        self._lost = True
        """Whether no step can be run: then nobody is admitted."""
        self._wake = asyncio.Event()
        """Set when something has come to be done."""
        self._idle = asyncio.Event()
        self._idle.set()

    # ---- what devices ask ----

    def open(
        self,
        key: Key,
        tenant: str,
        positions: int,
        deliver: Deliver,
        *,
        prompt: int = 0,
        expected: int = 0,
        replayed: bool = False,
    ) -> None:
        """Begin a session that may reach ``positions``; ``wire.messages.Open`` says what the rest means.

        Raises:
            SessionFailed: no session or no page is free, or the stages are being started again.
        """
        if self._lost:
            raise SessionFailed(Code.STAGE_LOST, "the layers are being started", retry_after_s=RETRY_AFTER_S)
        self.ledger.open(key, tenant, positions, prompt, monotonic(), replay=replayed, expected=expected or None)
        self._sessions[key] = Session(deliver)
        if replayed:
            self._metrics.replays.inc()
            self._metrics.replayed_rows.inc(prompt)
        self._note_idle()

    def resume(self, old: Key, new: Key, position: int, deliver: Deliver) -> None:
        """Go on with session ``old`` as ``new`` from ``position``; what else it had asked for is forgotten.

        Raises:
            SessionFailed: there is no such session, or its rows up to ``position`` have not been computed.
        """
        before = self._sessions.get(old)
        if before is None:
            raise SessionFailed(Code.UNKNOWN_SESSION, "that session is not kept here any more")
        if position > min(before.done, before.length):
            raise SessionFailed(Code.BAD_POSITION, f"only {before.done} positions of that session are here")
        self.ledger.resume(old, new, position, self.ledger.entries[old].positions, monotonic())
        # A new object: what a step under way still does for the old one finds nobody to deliver to.
        del self._sessions[old]
        self._sessions[new] = Session(deliver, position, position)
        self._forget_work(old)
        self._metrics.resumes.inc()
        self._note_idle()

    def forward(
        self,
        key: Key,
        sequence: int,
        position: int,
        hidden: torch.Tensor,
        want: int,
        parents: Sequence[int] | None = None,
    ) -> None:
        """Queue new positions ``hidden [rows, hidden]``; ``deliver`` gets the last ``want``; or ``SessionFailed``.

        With ``parents`` they are nodes behind ``position``, each following the one it names, -1 the last position.
        """
        rows, now = hidden.shape[0], monotonic()
        kept = self._is_parked(key)
        self.ledger.forward(key, sequence, position, rows, want, now, parents)
        if kept:
            self._take_up(position)
        self._sessions[key].waiting[sequence] = Waiting(hidden, want, now, parents)
        self._scheduler.add(key, sequence, rows, self.ledger.entries[key].tenant, parents is not None)
        self._gathering.arrived(key, now)
        self._wake.set()

    def truncate(self, key: Key, position: int) -> None:
        """Go back to ``position``, in order with the forwards. Raises ``SessionFailed``."""
        kept = self._is_parked(key)
        self.ledger.truncate(key, position, monotonic())
        if kept:
            self._take_up(position)
        self._scheduler.truncate(key, position)
        self._wake.set()

    def keep(self, key: Key, nodes: Sequence[int]) -> None:
        """Go on behind a path of nodes, in order with the forwards. Raises ``SessionFailed``."""
        self.ledger.keep(key, nodes, monotonic())
        self._scheduler.truncate(key, self.ledger.entries[key].position - len(nodes), tuple(nodes))
        self._wake.set()

    def park(self, key: Key) -> None:
        """Keep a session for a next turn while there is room. Raises ``SessionFailed``."""
        for each in self.ledger.park(key, monotonic()):
            self._end(each, SessionFailed(Code.EVICTED, "a younger conversation took this one's place"))
        self._gathering.closed(key)
        self._scheduler.turn_over(key)
        self._note_idle()

    def close(self, key: Key) -> None:
        """End a session and give back its pages."""
        if self.ledger.close(key):
            del self._sessions[key]
            self._forget_work(key)
            self._note_idle()

    def leave(self, connection: int) -> None:
        """A connection is gone: keep its sessions for a while, in case the device comes back for them."""
        for key in [key for key in self._sessions if key[0] == connection]:
            self._forget_work(key)
            session = self._sessions[key]
            # Rows that wait will be sent again; a step under way may finish what it has begun.
            there = min(session.done, session.length)
            self._sessions[key] = Session(_nobody, there, there)
            self.ledger.entries[key].position = there
        for key in self.ledger.orphan(connection, monotonic()):
            self._end(key, SessionFailed(Code.EVICTED, "too many sessions wait for their devices"))
        self._note_idle()

    def close_kept(self) -> None:
        """End every session that only waits for a next turn or a reconnect: the server is about to stop."""
        for key in [key for key, entry in self.ledger.entries.items() if entry.state is not State.OPEN]:
            self._end(key, SessionFailed(Code.DRAINING, "the server is stopping"))

    async def emptied(self, within_s: float) -> bool:
        """Wait until no session is open; False when some still are after ``within_s`` seconds."""
        try:
            await asyncio.wait_for(self._idle.wait(), within_s)
        except (TimeoutError, asyncio.TimeoutError):
            return False
        return True

    # ---- what operators see ----

    @property
    def waiting_rows(self) -> int:
        """Rows not yet in any step."""
        return self._scheduler.waiting_rows

    @property
    def waiting_sessions(self) -> int:
        """Sessions with rows not yet in any step."""
        return self._scheduler.waiting_sessions

    def _end(self, key: Key, failure: SessionFailed) -> None:
        """End a session from this side and tell its device."""
        session = self._sessions[key]
        if failure.code is Code.EVICTED:
            self._metrics.evictions.inc()
        self.close(key)
        session.deliver(-1, failure)

    def _is_parked(self, key: Key) -> bool:
        entry = self.ledger.entries.get(key)
        return entry is not None and entry.state is State.PARKED

    def _take_up(self, position: int) -> None:
        """A parked session goes on from ``position``."""
        self._metrics.prefix_rows.inc(position)
        self._note_idle()

    def _forget_work(self, key: Key) -> None:
        self._scheduler.remove(key)
        self._gathering.closed(key)
        if not self._scheduler.waiting_rows:
            self._gathering.began(monotonic(), False)  # Nothing is ready any more.

    def _note_idle(self) -> None:
        busy = any(entry.state is State.OPEN for entry in self.ledger.entries.values())
        self._idle.clear() if busy else self._idle.set()


def _nobody(sequence: int, outcome: Answer | SessionFailed) -> None:
    """Deliver to a connection that is gone."""
