"""What the ledger holds of a session, and the limits it goes by. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from split_model.tree import Tree
from wire.credits import Window


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


class SessionState(Enum):
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
    state: SessionState = SessionState.OPEN
