"""What every session may do next: the rules a device must keep, held at the door. Pure: ids and numbers only."""

from __future__ import annotations

from dataclasses import dataclass, field

from wire.credits import Window
from wire.errors import Code, SessionFailed

RETRY_AFTER_S = 1.0
"""What a device is told to wait when the server is full."""

Key = tuple[int, int]
"""A session's name in the server: the connection it came on, and its number there."""


@dataclass(frozen=True)
class Limits:
    """How much the server takes on; ``docs/structure.md`` lists the settings behind each."""

    sessions: int
    device_sessions: int
    positions: int
    kv_positions: int
    window_rows: int
    rows: int


@dataclass
class Entry:
    """One open session.

    Attributes:
        reserved: positions it may reach.
        position: where its next row goes, once everything received so far is done.
        sequence: number of its next forward.
        window: rows it has sent and not yet had answered.
    """

    reserved: int
    window: Window
    position: int = 0
    sequence: int = 0


@dataclass
class Ledger:
    """All open sessions. Every method raises ``SessionFailed`` and changes nothing when a rule is broken."""

    limits: Limits
    entries: dict[Key, Entry] = field(default_factory=dict)
    reserved: int = 0
    draining: bool = False

    def open(self, key: Key, positions: int) -> None:
        """Admit a session with room for ``positions`` positions."""
        limits = self.limits
        if key in self.entries:
            raise SessionFailed(Code.DUPLICATE_SESSION, "this session is open already")
        if self.draining:
            raise SessionFailed(
                Code.DRAINING, "the server is stopping and takes no new sessions", retry_after_s=RETRY_AFTER_S
            )
        if not 0 < positions <= limits.positions:
            raise SessionFailed(
                Code.TOKEN_LIMIT,
                f"a session of {positions} positions was asked for, this server allows 1 to {limits.positions}",
            )
        if len(self.entries) >= limits.sessions or self.of_device(key[0]) >= limits.device_sessions:
            raise SessionFailed(Code.SESSION_LIMIT, "no session is free, try again", retry_after_s=RETRY_AFTER_S)
        if self.reserved + positions > limits.kv_positions:
            raise SessionFailed(
                Code.SESSION_LIMIT, "no room for this many positions now, try again", retry_after_s=RETRY_AFTER_S
            )
        self.entries[key] = Entry(positions, Window(limits.window_rows))
        self.reserved += positions

    def forward(self, key: Key, sequence: int, position: int, rows: int, want: int) -> None:
        """Take in ``rows`` new positions of a session, in order and within its window."""
        entry = self._entry(key)
        if sequence != entry.sequence:
            raise SessionFailed(Code.BAD_POSITION, f"forward {sequence} came, {entry.sequence} is next")
        if position != entry.position:
            raise SessionFailed(Code.BAD_POSITION, f"rows for position {position} came, {entry.position} is next")
        if not 0 < rows <= self.limits.rows:
            raise SessionFailed(
                Code.SHAPE_MISMATCH, f"{rows} rows in one forward, this server allows 1 to {self.limits.rows}"
            )
        if want > rows:
            raise SessionFailed(Code.SHAPE_MISMATCH, f"{want} rows are wanted of {rows}")
        if position + rows > entry.reserved:
            raise SessionFailed(
                Code.TOKEN_LIMIT, f"position {position + rows} is beyond the {entry.reserved} of this session"
            )
        if not entry.window.take(rows):
            raise SessionFailed(Code.CREDIT_EXCEEDED, f"more than {entry.window.limit} rows are unanswered")
        entry.sequence += 1
        entry.position += rows

    def truncate(self, key: Key, position: int) -> None:
        """Go back to ``position``."""
        entry = self._entry(key)
        if position > entry.position:
            raise SessionFailed(Code.BAD_POSITION, f"cannot truncate to {position}, the session is at {entry.position}")
        entry.position = position

    def answered(self, key: Key, rows: int) -> None:
        """``rows`` of a session have been answered; nothing when it is closed by now."""
        if key in self.entries:
            self.entries[key].window.give(rows)

    def close(self, key: Key) -> bool:
        """End a session; False when it is not open."""
        entry = self.entries.pop(key, None)
        if entry is None:
            return False
        self.reserved -= entry.reserved
        return True

    def of_device(self, connection: int) -> int:
        """Sessions open on one connection."""
        return sum(1 for each, _ in self.entries if each == connection)

    def _entry(self, key: Key) -> Entry:
        entry = self.entries.get(key)
        if entry is None:
            raise SessionFailed(Code.UNKNOWN_SESSION, "this session is not open")
        return entry
