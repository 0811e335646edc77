"""Which sessions end so that others have room. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from cloud_server.cache.moving import Key
from cloud_server.cache.pages import Pages
from cloud_server.engine.entries import Entry, Limits, SessionState

Entries = Mapping[Key, Entry]


def victim(entries: Entries, pages: Pages[Key]) -> tuple[Key, SessionState] | None:
    """Whom to end when pages run out, and what it was; None when nobody holds any.

    The longest idle of the parked, then of the orphans, then the youngest of the open of the tenant that holds most
    pages.
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
    """All of these sessions but the ``but`` that were active last, the longest idle first."""
    ordered = sorted(keys, key=lambda key: (entries[key].active, entries[key].order))
    return ordered[: max(0, len(ordered) - but)]


def expired(entries: Entries, limits: Limits, now: float) -> list[Key]:
    """Sessions to end: orphans that nobody resumed, and others that nothing came for and that wait for nothing."""
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
