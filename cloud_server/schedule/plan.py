"""What a step is asked for, what it may hold and what it does: the scheduler's words. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

SHORT_ROWS = 32
"""Work of at most this many rows is a decode row or a verification: somebody waits for the next token. Also the most
rows of a session whose forwards run together."""

CHUNK_SHARE = 4
"""While chunks wait, short work leaves them one in this many rows of the budget."""


@dataclass(frozen=True)
class Budget:
    """How much one step may hold: ``rows`` in all, of them ``chunk_rows`` of chunks while short work is in it too."""

    rows: int
    chunk_rows: int

    def __post_init__(self) -> None:
        assert self.rows >= CHUNK_SHARE and self.chunk_rows >= 0


@dataclass(frozen=True)
class Demand:
    """What the next step is asked for: all rows of short work that may run in it, and the sessions that have short work
    and chunks."""

    short_rows: int
    short_sessions: int
    chunk_sessions: int


@dataclass(frozen=True)
class Portion(Generic[Key]):
    """Rows ``begin`` to ``begin + rows`` of forward ``sequence`` run in this step; ``last`` when that completes it."""

    key: Key
    sequence: int
    begin: int
    rows: int
    last: bool


@dataclass(frozen=True)
class Truncation(Generic[Key]):
    """Before this step's rows, forget everything of a session from ``position`` on, but for its nodes ``nodes``, which
    are its next positions from now on."""

    key: Key
    position: int
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan(Generic[Key]):
    """One step: first the truncations, then all portions in one batch.

    Where a session has several, they are consecutive and in order, ``SHORT_ROWS`` rows in all at most, and each but the
    last completes its forward.
    """

    truncations: tuple[Truncation[Key], ...]
    portions: tuple[Portion[Key], ...]
