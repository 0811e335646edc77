"""What every session may do next: the rules a device must keep, held at the door. Pure: ids, numbers and time only.

A session takes pages as its rows come, not when it opens; the door only asks whether the rows expected soon would find
pages. So more sessions fit than if each reserved what it may reach, and when they all grow long after all, ``shares``
says who has to end. A session is open, or parked between two turns of a conversation, or an orphan while the connection
it came on is gone; the parked and the orphans keep their pages only as long as nobody else needs them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from cloud_server.cache.moving import Key
from cloud_server.cache.pages import Pages
from cloud_server.engine.entries import Entry, Limits, SessionState
from cloud_server.engine.shares import Holding, longest_idle, may_open, room
from split_model.tree import Branches, Tree, check_path, reach, tree_behind
from wire.credits import Window
from wire.errors import Code, SessionFailed
from wire.limits import MAX_BRANCHING_ROWS

RETRY_AFTER_S = 1.0
"""What a device is told to wait where there is no room, or the layers are being started."""

PROMISE_S = 10.0
"""Pages for a prompt that was announced are kept free for so long without a row of it having come."""


def full(what: str) -> SessionFailed:
    """Return the failure that says there is no room for something now."""
    return SessionFailed(Code.SESSION_LIMIT, f"{what}, try again", retry_after_s=RETRY_AFTER_S)


@dataclass
class Ledger:
    """All sessions. A method that meets a broken rule raises ``SessionFailed`` and changes nothing."""

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

        A ``replay`` goes on with an answer that has begun: see ``room``.
        """
        self._check_open(key, tenant, positions)
        if not 0 <= prompt <= positions:
            raise SessionFailed(
                Code.TOKEN_LIMIT, f"a prompt of {prompt} rows in a session of {positions} positions was announced"
            )
        mine, others = self._holdings(tenant, now)
        if self.pages.needed(prompt) > room(self.pages.count, mine, others, replay):
            raise full("no room for this many positions now")
        self._enter(key, tenant, positions, now, prompt=prompt)
        self.pages.open(key, positions if expected is None else min(expected, positions))

    def check_fork(self, source: Key, key: Key, position: int, now: float) -> None:
        """Raise ``SessionFailed`` where ``fork`` would also if there were pages enough."""
        entry = self._entry(source)
        self._check_open(key, entry.tenant, entry.positions)
        if not 0 < position <= entry.position:
            raise SessionFailed(Code.BAD_POSITION, f"cannot fork at {position}, the session is at {entry.position}")
        mine, others = self._holdings(entry.tenant, now)
        if self.pages.needed(position) > room(self.pages.count, mine, others, False):
            raise full("no room for a fork now")

    def fork(self, source: Key, key: Key, position: int, now: float) -> None:
        """Admit a session that begins with the first ``position`` positions of ``source``, of the same connection, and
        may reach as far. It takes its pages at once, so that they are there to be copied to. ``source`` stays as it is,
        and nothing of its nodes is seen."""
        self.check_fork(source, key, position, now)
        if not self.pages.fork(source, key, position):
            raise full("no room for a fork now")
        entry = self.entries[source]
        self._enter(key, entry.tenant, entry.positions, now, position=position)

    def forward(
        self,
        key: Key,
        sequence: int,
        position: int,
        rows: int,
        want: int,
        now: float,
        parents: Sequence[int] | None = None,
    ) -> Branches | None:
        """Take in ``rows`` new positions of a session, in order and within its window, or, with ``parents``, so many
        nodes behind its position.

        Returns where the nodes stand and what they see; None where they are a line.
        """
        entry = self._entry(key)
        tree, branching = self._check_forward(entry, sequence, position, rows, want, parents)
        self._wake(key, entry, now)
        entry.window.take(rows)
        entry.sequence += 1
        entry.tree = tree
        if tree is None:
            entry.position += rows
        entry.promised_until = now + PROMISE_S
        if entry.position >= entry.prompt:
            entry.prompt = 0
        return branching

    def _check_forward(
        self, entry: Entry, sequence: int, position: int, rows: int, want: int, parents: Sequence[int] | None
    ) -> tuple[Tree | None, Branches | None]:
        """Return the nodes that rows with parents are, and what they see. Raises ``SessionFailed`` as ``forward``."""
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
        tree, branching, end = None, None, position + rows
        if parents is not None:
            try:
                tree, branching = tree_behind(position, parents, rows, MAX_BRANCHING_ROWS)
            except ValueError as error:
                raise SessionFailed(Code.BAD_POSITION, str(error)) from None
            end = reach(tree)
        if end > entry.positions:
            raise SessionFailed(Code.TOKEN_LIMIT, f"position {end} is beyond the {entry.positions} of this session")
        if self.pages.needed(position + rows) > self.pages.count:
            raise SessionFailed(Code.TOKEN_LIMIT, f"no session here has room for {rows} rows behind {position}")
        if not entry.window.fits(rows):
            raise SessionFailed(Code.CREDIT_EXCEEDED, f"more than {entry.window.limit} rows are unanswered")
        return tree, branching

    def truncate(self, key: Key, position: int, now: float) -> None:
        """Go back to ``position``."""
        entry = self._entry(key)
        if not 0 <= position <= entry.position:
            raise SessionFailed(Code.BAD_POSITION, f"cannot truncate to {position}, the session is at {entry.position}")
        self._wake(key, entry, now)
        entry.position, entry.tree = position, None

    def keep(self, key: Key, nodes: Sequence[int], now: float) -> None:
        """Make ``nodes``, a path behind the position, the next positions, and forget all other nodes."""
        entry = self._entry(key)
        try:
            check_path(entry.tree, nodes)
        except ValueError as error:
            raise SessionFailed(Code.BAD_POSITION, str(error)) from None
        self._wake(key, entry, now)
        entry.position += len(nodes)
        entry.tree = None

    def answered(self, key: Key, rows: int, now: float) -> None:
        """Give the credit of ``rows`` answered rows back to a session; does nothing when it is closed by now."""
        entry = self.entries.get(key)
        if entry is not None:
            entry.window.give(rows)
            if entry.state is SessionState.OPEN:  # An orphan's time runs from the loss of its connection.
                entry.active = now

    def park(self, key: Key, now: float) -> list[Key]:
        """Keep an open session, of which nothing is unanswered, for its next turn.

        Returns the sessions to end for it: the tenant's longest parked, beyond what a tenant may park.
        """
        entry = self._entry(key)
        if entry.window.in_flight or entry.tree is not None:
            raise SessionFailed(Code.BAD_POSITION, "cannot park, rows are unanswered or branch")
        entry.state, entry.active, entry.prompt = SessionState.PARKED, now, 0
        parked = [
            each
            for each, other in self.entries.items()
            if other.state is SessionState.PARKED and other.tenant == entry.tenant and other is not entry
        ]
        # Itself only where none may be parked: it is the youngest.
        ending = longest_idle(self.entries, parked, but=max(0, self.limits.parked_sessions - 1))
        return ending if self.limits.parked_sessions else [*ending, key]

    def orphan(self, connection: int, now: float) -> list[Key]:
        """Make orphans of the sessions of a connection that is gone: they can be resumed for a while, and no longer
        count as open.

        Returns the sessions to end for it: the longest orphaned, beyond as many as may be open.
        """
        for key, entry in self.entries.items():
            if key[0] == connection and entry.state is not SessionState.ORPHAN:
                # Its nodes keep their pages until it is resumed or ends: a step under way may still write to them.
                entry.state, entry.active, entry.prompt = SessionState.ORPHAN, now, 0
        orphans = [key for key, entry in self.entries.items() if entry.state is SessionState.ORPHAN]
        return longest_idle(self.entries, orphans, but=self.limits.sessions)

    def resume(self, old: Key, new: Key, position: int, positions: int, now: float) -> None:
        """Let session ``old`` go on as ``new`` from ``position``, with nothing unanswered, and free the pages beyond.
        The caller knows that both belong to the same tenant."""
        entry = self.entries.get(old)
        if entry is None:
            raise SessionFailed(Code.UNKNOWN_SESSION, "this session is not kept any more")
        self._check_open(new, entry.tenant, positions, instead=old)
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
        entry.state, entry.active = SessionState.OPEN, now

    def close(self, key: Key) -> bool:
        """End a session and free its pages; returns False when there is none."""
        if self.entries.pop(key, None) is None:
            return False
        self.pages.close(key)
        return True

    def of_device(self, connection: int, but: Key | None = None) -> int:
        """Return how many sessions are open on one connection, ``but`` one."""
        return sum(
            key[0] == connection and key != but and entry.state is SessionState.OPEN
            for key, entry in self.entries.items()
        )

    def count(self, state: SessionState) -> int:
        """Return how many sessions are in a state."""
        return sum(entry.state is state for entry in self.entries.values())

    @property
    def pages_open(self) -> int:
        """Pages of open sessions: by these a server is full, since all others give theirs up when they are needed."""
        return sum(self.pages.held(key) for key, entry in self.entries.items() if entry.state is SessionState.OPEN)

    def _enter(self, key: Key, tenant: str, positions: int, now: float, *, prompt: int = 0, position: int = 0) -> None:
        self._order += 1
        window, until = Window(self.limits.window_rows), now + PROMISE_S
        self.entries[key] = Entry(tenant, now, positions, window, self._order, now, prompt, until, position)

    def _check_open(self, key: Key, tenant: str, positions: int, instead: Key | None = None) -> None:
        """Raise ``SessionFailed`` where no session may be open as ``key``. ``instead``: one that goes on as it."""
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
        self._check_room(key[0], tenant, instead)

    def _check_room(self, connection: int, tenant: str, instead: Key | None = None) -> None:
        mine, others = self._holdings(tenant, 0.0, instead)
        too_many = self.of_device(connection, instead) >= self.limits.device_sessions
        if too_many or not may_open(self.limits.sessions, mine, others):
            raise full("no session is free")

    def _holdings(self, tenant: str, now: float, but: Key | None = None) -> tuple[Holding, Collection[Holding]]:
        """Return what the open sessions of ``tenant`` have, and those of each other tenant."""
        of_all = {tenant: Holding()}
        for key, entry in self.entries.items():
            if entry.state is SessionState.OPEN and key != but:
                announced = entry.prompt if now < entry.promised_until else 0
                came = entry.position + (0 if entry.tree is None else len(entry.tree))
                of_all.setdefault(entry.tenant, Holding()).add(
                    self.pages.held(key), self.pages.needed(max(came, announced))
                )
        return of_all.pop(tenant), of_all.values()

    def _wake(self, key: Key, entry: Entry, now: float) -> None:
        """Something came for a session, which may be parked."""
        if entry.state is SessionState.PARKED:
            self._check_room(key[0], entry.tenant)
        entry.state, entry.active = SessionState.OPEN, now

    def _entry(self, key: Key) -> Entry:
        entry = self.entries.get(key)
        if entry is None or entry.state is SessionState.ORPHAN:
            raise SessionFailed(Code.UNKNOWN_SESSION, "this session is not open")
        return entry
