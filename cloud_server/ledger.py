"""What every session may do next: the rules a device must keep, held at the door. Pure: ids, numbers and time only.

A session takes pages as its rows come, not when it opens; the door only asks whether the rows expected soon would find
pages. So more sessions fit than if each reserved what it may reach, and when they all grow long after all, ``victim``
says who has to end. A session is open, or parked between two turns of a conversation, or an orphan while the connection
it came on is gone; the parked and the orphans keep their pages only as long as nobody else needs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from cloud_server.pages import Pages
from split_model.nodes import check_path, reach, tree_behind
from split_model.tree import Tree
from wire.credits import Window
from wire.errors import Code, SessionFailed
from wire.limits import MAX_BRANCHING_ROWS

RETRY_AFTER_S = 1.0
"""What a device is told to wait when the server is full."""

PROMISE_S = 10.0
"""Pages for a prompt that was announced are kept free for so long without a row of it having come."""

WATERMARK = 20
"""One page in this many is left to the open sessions to grow into when another wants to open."""

Key = tuple[int, int]
"""A session's name in the server: the connection it came on, and its number there."""


@dataclass(frozen=True)
class Limits:
    """How much the server takes on; ``docs/structure.md`` lists the settings behind each.

    Attributes:
        sessions, device_sessions: open sessions, in all and on one connection.
        positions: of one session.
        window_rows, rows: unanswered rows of a session, and rows of one forward.
        pages, page_positions: pages of the KV cache, and positions in each.
        parked_sessions: of one tenant.
        idle_s, resume_s: how long a session that nothing comes for is kept, and one whose connection is gone.
    """

    sessions: int
    device_sessions: int
    positions: int
    window_rows: int
    rows: int
    pages: int
    page_positions: int
    parked_sessions: int
    idle_s: float
    resume_s: float


class State(Enum):
    """Where a session stands."""

    OPEN = "open"
    PARKED = "parked"
    ORPHAN = "orphan"


@dataclass
class Entry:
    """One session.

    Attributes:
        tenant: whose session it is.
        opened: when it was opened; a resumed session is as old as it was.
        positions: most it may reach.
        window: rows it has sent and not yet had answered.
        order: grows from session to session, so the largest is the youngest.
        active: when anything last came for it or was answered, or when its connection was lost.
        prompt: rows it said would come soon; 0 once they have come.
        promised_until: how long pages for them are kept free.
        position: where its next row goes, once everything received so far is done.
        sequence: number of its next forward.
        tree: its nodes behind ``position``, until a path of them is kept or all are forgotten.
    """

    tenant: str
    opened: float
    positions: int
    window: Window
    order: int
    active: float
    prompt: int = 0
    promised_until: float = 0.0
    position: int = 0
    sequence: int = 0
    tree: Tree | None = None
    state: State = State.OPEN


@dataclass
class Ledger:
    """All sessions. Every method raises ``SessionFailed`` and changes nothing when a rule is broken."""

    limits: Limits
    entries: dict[Key, Entry] = field(default_factory=dict)
    draining: bool = False
    pages: Pages[Key] = field(init=False)
    _order: int = 0

    def __post_init__(self) -> None:
        self.pages = Pages(self.limits.pages, self.limits.page_positions)

    def open(
        self,
        key: Key,
        tenant: str,
        positions: int,
        prompt: int,
        now: float,
        replay: bool = False,
        expected: int | None = None,
    ) -> None:
        """Admit a session of at most ``positions`` positions, of which ``prompt`` come soon and ``expected`` probably.

        A ``replay`` goes on elsewhere broken off and may take the pages that are left to open sessions to grow into.
        """
        self._check_open(key, positions)
        if not 0 <= prompt <= positions:
            raise SessionFailed(
                Code.TOKEN_LIMIT, f"a prompt of {prompt} rows in a session of {positions} positions was announced"
            )
        available = self.pages.count - self._promised(now)
        if not replay and self.count(State.OPEN):
            available -= -(-self.pages.count // WATERMARK)
        if self.pages.needed(prompt) > available:
            raise SessionFailed(
                Code.SESSION_LIMIT, "no room for this many positions now, try again", retry_after_s=RETRY_AFTER_S
            )
        self._order += 1
        window = Window(self.limits.window_rows)
        self.entries[key] = Entry(tenant, now, positions, window, self._order, now, prompt, now + PROMISE_S)
        self.pages.open(key, positions if expected is None else min(expected, positions))

    def forward(
        self,
        key: Key,
        sequence: int,
        position: int,
        rows: int,
        want: int,
        now: float,
        parents: Sequence[int] | None = None,
    ) -> None:
        """Take in ``rows`` new positions of a session, in order and within its window; with ``parents``, so many nodes
        behind its position."""
        tree, entry = self.check_forward(key, sequence, position, rows, want, parents), self._entry(key)
        self._wake(key, entry, now)
        entry.window.take(rows)
        entry.sequence += 1
        entry.tree = tree
        if tree is None:
            entry.position += rows
        entry.promised_until = now + PROMISE_S
        if entry.position >= entry.prompt:
            entry.prompt = 0

    def check_forward(
        self, key: Key, sequence: int, position: int, rows: int, want: int, parents: Sequence[int] | None
    ) -> Tree | None:
        """Whether ``forward`` would take it now, nothing being changed; of rows that branch, their tree.

        Raises:
            SessionFailed: it would not.
        """
        entry = self._entry(key)
        if entry.tree is not None:
            raise SessionFailed(Code.BAD_POSITION, "rows came behind rows that branch, before any of them was kept")
        if sequence != entry.sequence:
            raise SessionFailed(Code.BAD_POSITION, f"forward {sequence} came, {entry.sequence} is next")
        if position != entry.position:
            raise SessionFailed(Code.BAD_POSITION, f"rows for position {position} came, {entry.position} is next")
        if not 0 < rows <= self.limits.rows:
            raise SessionFailed(
                Code.SHAPE_MISMATCH, f"{rows} rows in one forward, this server allows 1 to {self.limits.rows}"
            )
        if not 0 <= want <= rows:
            raise SessionFailed(Code.SHAPE_MISMATCH, f"{want} rows are wanted of {rows}")
        tree, end = None, position + rows
        if parents is not None:
            try:
                tree, _ = tree_behind(position, parents, rows, MAX_BRANCHING_ROWS)
            except ValueError as error:
                raise SessionFailed(Code.BAD_POSITION, str(error)) from None
            end = reach(tree)
        if end > entry.positions:
            raise SessionFailed(Code.TOKEN_LIMIT, f"position {end} is beyond the {entry.positions} of this session")
        if self.pages.needed(position + rows) > self.pages.count:
            raise SessionFailed(Code.TOKEN_LIMIT, f"no session here has room for {rows} rows behind {position}")
        if not entry.window.fits(rows):
            raise SessionFailed(Code.CREDIT_EXCEEDED, f"more than {entry.window.limit} rows are unanswered")
        return tree

    def truncate(self, key: Key, position: int, now: float) -> None:
        """Go back to ``position``."""
        entry = self._entry(key)
        if not 0 <= position <= entry.position:
            raise SessionFailed(Code.BAD_POSITION, f"cannot truncate to {position}, the session is at {entry.position}")
        self._wake(key, entry, now)
        entry.position, entry.tree = position, None

    def keep(self, key: Key, nodes: Sequence[int], now: float) -> None:
        """Go on behind ``nodes``, a path from the position on, and forget all others."""
        entry = self._entry(key)
        try:
            check_path(entry.tree, nodes)
        except ValueError as error:
            raise SessionFailed(Code.BAD_POSITION, str(error)) from None
        self._wake(key, entry, now)
        entry.position += len(nodes)
        entry.tree = None

    def answered(self, key: Key, rows: int, now: float) -> None:
        """``rows`` of a session have been answered; nothing when it is closed by now."""
        entry = self.entries.get(key)
        if entry is not None:
            entry.window.give(rows)
            if entry.state is State.OPEN:  # An orphan's time runs from the loss of its connection.
                entry.active = now

    def park(self, key: Key, now: float) -> list[Key]:
        """Keep an open session of which nothing is unanswered for its next turn.

        Returns the sessions to end for it: the tenant's longest parked, beyond what a tenant may park.
        """
        entry = self._entry(key)
        if entry.window.in_flight or entry.tree is not None:
            raise SessionFailed(Code.BAD_POSITION, "cannot park, rows are unanswered or branch")
        entry.state, entry.active, entry.prompt = State.PARKED, now, 0
        parked = [
            each
            for each, other in self.entries.items()
            if other.state is State.PARKED and other.tenant == entry.tenant and other is not entry
        ]
        parked = [*sorted(parked, key=self._idleness), key]
        return parked[: max(0, len(parked) - self.limits.parked_sessions)]

    def orphan(self, connection: int, now: float) -> list[Key]:
        """A connection is gone: its sessions can be resumed for a while and no longer count as open.

        Returns the sessions to end for it: the longest orphaned, beyond as many as may be open.
        """
        for key, entry in self.entries.items():
            if key[0] == connection and entry.state is not State.ORPHAN:
                # Its nodes keep their pages until it is resumed or ends: a step under way may still write to them.
                entry.state, entry.active, entry.prompt = State.ORPHAN, now, 0
        orphans = [key for key, entry in self.entries.items() if entry.state is State.ORPHAN]
        return sorted(orphans, key=self._idleness)[: max(0, len(orphans) - self.limits.sessions)]

    def resume(self, old: Key, new: Key, position: int, positions: int, now: float) -> None:
        """The session ``old`` goes on as ``new`` from ``position``, with nothing unanswered, and gives back the pages
        beyond. Whoever calls knows that both belong to the same tenant."""
        entry = self.entries.get(old)
        if entry is None:
            raise SessionFailed(Code.UNKNOWN_SESSION, "this session is not kept any more")
        self._check_open(new, positions, instead=old)
        if not 0 <= position <= entry.position:
            raise SessionFailed(
                Code.BAD_POSITION, f"cannot resume at {position}, the session had come to {entry.position}"
            )
        if position > positions:
            raise SessionFailed(Code.TOKEN_LIMIT, f"cannot resume at {position} in {positions} positions")
        self.entries[new] = self.entries.pop(old)
        self.pages.rename(old, new)
        self.pages.truncate(new, position)
        self.pages.expect(new, positions)
        entry.window = Window(self.limits.window_rows)
        entry.positions, entry.position, entry.sequence, entry.prompt = positions, position, 0, 0
        entry.tree = None
        entry.state, entry.active = State.OPEN, now

    def expired(self, now: float) -> list[Key]:
        """Sessions to end: orphans that nobody resumed, and others that nothing came for and that wait for nothing."""
        limits = self.limits
        return [
            key
            for key, entry in self.entries.items()
            if (entry.state is State.ORPHAN and now - entry.active >= limits.resume_s)
            or (entry.state is not State.ORPHAN and now - entry.active >= limits.idle_s and not entry.window.in_flight)
        ]

    def victim(self) -> tuple[Key, State] | None:
        """Whom to end when pages run out, and what it was; None when nobody holds any.

        The longest idle of the parked, then of the orphans, then the youngest of the open of the tenant that holds
        most pages.
        """
        held: Counter[str] = Counter()
        holding = []
        for key, entry in self.entries.items():
            held[entry.tenant] += self.pages.held(key)
            if self.pages.held(key):
                holding.append(key)
        for state in (State.PARKED, State.ORPHAN):
            idle = [key for key in holding if self.entries[key].state is state]
            if idle:
                return min(idle, key=self._idleness), state
        if not holding:
            return None
        youngest = max(holding, key=lambda key: (held[self.entries[key].tenant], self.entries[key].order))
        return youngest, State.OPEN

    def close(self, key: Key) -> bool:
        """End a session and give back its pages; False when there is none."""
        if self.entries.pop(key, None) is None:
            return False
        self.pages.close(key)
        return True

    def of_device(self, connection: int) -> int:
        """Sessions open on one connection."""
        return sum(1 for key, entry in self.entries.items() if key[0] == connection and entry.state is State.OPEN)

    def count(self, state: State) -> int:
        """Sessions in a state."""
        return sum(1 for entry in self.entries.values() if entry.state is state)

    def pages_by_state(self) -> dict[State, int]:
        """Pages that the sessions in each state hold."""
        held = dict.fromkeys(State, 0)
        for key, entry in self.entries.items():
            held[entry.state] += self.pages.held(key)
        return held

    def _check_open(self, key: Key, positions: int, instead: Key | None = None) -> None:
        """Whether a session may be open as ``key``, where ``instead`` is one that goes on as it."""
        if key in self.entries:
            raise SessionFailed(Code.DUPLICATE_SESSION, "this session is open already")
        if self.draining:
            raise SessionFailed(
                Code.DRAINING, "the server is stopping and takes no new sessions", retry_after_s=RETRY_AFTER_S
            )
        most = min(self.limits.positions, self.pages.count * self.pages.page_positions)
        if not 0 < positions <= most:
            raise SessionFailed(
                Code.TOKEN_LIMIT, f"a session of {positions} positions was asked for, this server allows 1 to {most}"
            )
        self._check_room(key[0], instead)

    def _check_room(self, connection: int, instead: Key | None = None) -> None:
        of_device = of_all = 0
        for key, entry in self.entries.items():
            if entry.state is State.OPEN and key != instead:
                of_all += 1
                of_device += key[0] == connection
        if of_all >= self.limits.sessions or of_device >= self.limits.device_sessions:
            raise SessionFailed(Code.SESSION_LIMIT, "no session is free, try again", retry_after_s=RETRY_AFTER_S)

    def _promised(self, now: float) -> int:
        """Pages that the open sessions hold or will need for rows that have come or were lately announced."""
        promised = 0
        for key, entry in self.entries.items():
            if entry.state is State.OPEN:
                announced = entry.prompt if now < entry.promised_until else 0
                came = entry.position + (0 if entry.tree is None else len(entry.tree))
                promised += max(self.pages.held(key), self.pages.needed(max(came, announced)))
        return promised

    def _idleness(self, key: Key) -> tuple[float, int]:
        entry = self.entries[key]
        return entry.active, entry.order

    def _wake(self, key: Key, entry: Entry, now: float) -> None:
        """Something came for a session, which may be parked."""
        if entry.state is State.PARKED:
            self._check_room(key[0])
        entry.state, entry.active = State.OPEN, now

    def _entry(self, key: Key) -> Entry:
        entry = self.entries.get(key)
        if entry is None or entry.state is State.ORPHAN:
            raise SessionFailed(Code.UNKNOWN_SESSION, "this session is not open")
        return entry
