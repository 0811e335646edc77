"""What a tenant may take of what all of them share, and which sessions end so that others have room. Pure.

Pages are shared by need. What a tenant holds is its own. What it has only announced counts against the others no
further than its fair share of all pages, and not at all against a replay. Sessions are shared as switches share their
buffers: a tenant takes more only while enough are free beside what it has. Who is alone gets nearly all of them, and
who comes later still finds some.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cloud_server.cache.moving import Key
from cloud_server.cache.pages import Pages
from cloud_server.engine.entries import Entry, Limits, SessionState

Entries = Mapping[Key, Entry]

BESIDE_FREE = 8
"""A tenant opens a further session while it has fewer than so many times those that are free."""

NEWCOMERS = 16
"""Of all sessions one in this many is kept for tenants that have none; those that have come count as such."""

WATERMARK = 20
"""One page in this many is left to the open sessions to grow into when another wants to open."""


def tenant_of(credential: str, name: str) -> str:
    """Return the tenant that a device is: its credential and its name together, neither to be read from it."""
    parts = (hashlib.sha256(part.encode()).digest() for part in (credential, name))
    return hashlib.sha256(b"".join(parts)).hexdigest()[:32]


@dataclass
class Holding:
    """What the open sessions of one tenant have.

    Attributes:
        sessions: how many there are.
        held: pages they hold.
        wanted: those, and further ones for rows that have come or were announced lately.
    """

    sessions: int = 0
    held: int = 0
    wanted: int = 0

    def add(self, held: int, wanted: int) -> None:
        """One more session, that holds and wants so many pages."""
        self.sessions += 1
        self.held += held
        self.wanted += max(held, wanted)


def room(pages: int, mine: Holding, others: Iterable[Holding], replay: bool) -> int:
    """Return how many of ``pages`` a tenant's next session may announce; what it has itself counts in full.

    A ``replay`` goes on with what somebody waits for: it may take what is left for sessions to grow into, and what
    others have only announced does not count.
    """
    there = [each for each in others if each.sessions]
    if replay:
        return pages - mine.wanted - sum(each.held for each in there)
    if not there and not mine.sessions:
        return pages
    left = pages - -(-pages // WATERMARK)
    share = left // (len(there) + 1)
    return left - mine.wanted - sum(max(each.held, min(each.wanted, share)) for each in there)


def may_open(sessions: int, mine: Holding, others: Iterable[Holding]) -> bool:
    """Whether a tenant may have one more of ``sessions`` open sessions, or of as many connections."""
    there = [each.sessions for each in others if each.sessions]
    free = sessions - mine.sessions - sum(there)
    if not mine.sessions:
        return free > 0
    newcomers = max(0, sessions // NEWCOMERS - 1 - len(there))
    return mine.sessions < BESIDE_FREE * (free - newcomers)


def victim(entries: Entries, pages: Pages[Key]) -> tuple[Key, SessionState] | None:
    """Return which session to end when pages run out, and its state; None when nobody holds any.

    The longest idle parked one goes first, then the longest idle orphan, then the youngest open one of the tenant that
    holds most pages.
    """
    held: Counter[str] = Counter()
    holding = []
    for key, entry in entries.items():
        if count := pages.held(key):
            held[entry.tenant] += count
            holding.append(key)
    for state in (SessionState.PARKED, SessionState.ORPHAN):
        if idle := longest_idle(entries, (key for key in holding if entries[key].state is state), but=0):
            return idle[0], state
    if not holding:
        return None
    return max(holding, key=lambda key: (held[entries[key].tenant], entries[key].order)), SessionState.OPEN


def longest_idle(entries: Entries, keys: Iterable[Key], but: int) -> list[Key]:
    """Return these sessions without the ``but`` that were active last, the longest idle first."""
    ordered = sorted(keys, key=lambda key: (entries[key].active, entries[key].order))
    return ordered[: max(0, len(ordered) - but)]


def expired(entries: Entries, limits: Limits, now: float) -> list[Key]:
    """Return the sessions to end: orphans that nobody resumed in time, and others for which nothing came in time and
    that wait for nothing."""
    return [
        key
        for key, entry in entries.items()
        if (entry.state is SessionState.ORPHAN and now - entry.active >= limits.resume_s)
        or (
            entry.state is not SessionState.ORPHAN
            and now - entry.active >= limits.idle_s
            and not entry.window.in_flight
        )
    ]
