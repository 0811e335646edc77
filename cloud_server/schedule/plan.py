"""What a step is asked for, what it may hold and what it does: the scheduler's words. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

SHORT_ROWS = 32
"""Work of at most this many rows is a decode row or a verification: somebody waits for the next token. Forwards of one
session run together up to this many rows too."""

CHUNK_SHARE = 4
"""While chunks wait, short work leaves them one in this many rows of the budget."""


@dataclass(frozen=True)
class Budget:
    """How much one step may hold: ``rows`` in all, and ``chunk_rows`` of chunks where short work is in it too."""

    rows: int
    chunk_rows: int

    def __post_init__(self) -> None:
        assert self.rows >= CHUNK_SHARE and self.chunk_rows >= 0


@dataclass(frozen=True)
class Demand:
    """What the next step is asked for: rows of short work, and the sessions that have short work, and chunks, next."""

    short_rows: int
    short_sessions: int
    chunk_sessions: int


@dataclass(frozen=True)
class Portion(Generic[Key]):
    """``rows`` rows of forward ``sequence``, from row ``begin`` on, run in this step; ``last``: they complete it."""

    key: Key
    sequence: int
    begin: int
    rows: int
    last: bool


@dataclass(frozen=True)
class Truncation(Generic[Key]):
    """Before this step's rows, forget a session from ``position`` on. Its nodes ``nodes`` are kept: they are its next
    positions from now on."""

    key: Key
    position: int
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan(Generic[Key]):
    """One step: first the truncations, then all portions in one batch.

    Several portions of one session are consecutive and in order, of ``SHORT_ROWS`` rows together at most; each but the
    last completes its forward.
    """

    truncations: tuple[Truncation[Key], ...]
    portions: tuple[Portion[Key], ...]
