"""Conversations between two turns: chain sessions kept parked, for the request whose prompt goes on where they end.

A session belongs to one tenant and is never shown to another, and to one request at a time. Time is in seconds on any
one clock, handed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_agent.chain import ChainSession
from wire.errors import SessionFailed

MIN_SHARED = 16
"""Tokens that a prompt must share with a conversation for it to be taken up: fewer are prefilled as fast."""


@dataclass(frozen=True)
class _Parked:
    tenant: str
    ids: list[int]
    session: ChainSession
    nbytes: int
    at: float


class Conversations:
    """The parked sessions of one chain, oldest first.

    Args:
        limit: most of them; 0 keeps none.
        max_bytes: most memory they may hold on this device.
        max_age_s: how long one is kept.
    """

    def __init__(self, limit: int, max_bytes: int, max_age_s: float) -> None:
        self._limit = limit
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._parked: list[_Parked] = []

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def nbytes(self) -> int:
        """Bytes that they hold on this device."""
        return sum(each.nbytes for each in self._parked)

    def take(self, tenant: str, ids: Sequence[int], positions: int, now: float) -> ChainSession | None:
        """The session of ``tenant`` that shares the longest beginning with the prompt ``ids`` and may reach
        ``positions``, cut back to what they share, at least one token of the prompt being left to do.

        None when none shares enough: ``MIN_SHARED`` tokens and half of what it holds, since another conversation that
        only begins alike would lose the rest.
        """
        self.sweep(now)
        best, most = None, MIN_SHARED - 1
        for each in self._parked:
            if each.tenant == tenant and each.session.positions >= positions:
                common = shared(each.ids, ids)
                if common > most and 2 * common >= len(each.ids):
                    best, most = each, common
        if best is None:
            return None
        self._parked.remove(best)
        try:
            best.session.truncate(min(most, len(ids) - 1))
        except SessionFailed:  # It broke while it was parked, beyond what it can mend by itself.
            best.session.close()
            return None
        return best.session

    def keep(self, tenant: str, ids: Sequence[int], session: ChainSession, now: float) -> None:
        """Park a session that holds the tokens ``ids``, all of them answered. What is too much then is closed, the
        oldest first."""
        if not self._limit:
            session.close()
            return
        try:
            session.park()
        except SessionFailed:
            session.close()
            return
        self._parked.append(_Parked(tenant, list(ids), session, session.nbytes, now))
        while len(self._parked) > self._limit or self.nbytes > self._max_bytes:
            self._parked.pop(0).session.close()

    def sweep(self, now: float) -> None:
        """Close what is too old."""
        while self._parked and now - self._parked[0].at >= self._max_age_s:
            self._parked.pop(0).session.close()

    def close(self) -> None:
        """Close all of them."""
        while self._parked:
            self._parked.pop().session.close()


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences have in common from their beginning on."""
    for index, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return index
    return min(len(a), len(b))
