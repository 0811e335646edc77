"""How many log lines of a kind are said: pure, the clock comes from outside.

What a peer can cause at will must not fill a log, nor go unsaid: the first few lines of each kind are said, then one
every ``EVERY_S``, with how many were left out before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BURST: Final = 10
"""Lines of one kind that are said at once: an honest mishap, with all of its lines."""

EVERY_S: Final = 1.0
"""After those one line of a kind in this time: 86 thousand a day at most, tens of megabytes."""

MAX_KINDS: Final = 64
"""Kinds kept apart; all further ones share one ration. Kinds are our own words, of which there are fewer."""

_OTHERS: Final = "…"


@dataclass
class _Kind:
    left: float
    seen: float
    silent: int = 0


class Ration:
    """A token bucket for each kind of line."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def spend(self, kind: str, now: float) -> int | None:
        """Whether a line of ``kind`` is said now: how many were left out since the last one, or None where it is not.

        Args:
            now: seconds on any clock that never goes back.
        """
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
            kind = _OTHERS
        each = self._kinds.setdefault(kind, _Kind(BURST, now))
        each.left = min(float(BURST), each.left + (now - each.seen) / EVERY_S)
        each.seen = now
        if each.left < 1:
            each.silent += 1
            return None
        each.left -= 1
        left_out, each.silent = each.silent, 0
        return left_out

    def left_out(self) -> dict[str, int]:
        """How many lines of each kind have been left out and not been told of; they count as told now."""
        told = {name: each.silent for name, each in self._kinds.items() if each.silent}
        for each in self._kinds.values():
            each.silent = 0
        return told
