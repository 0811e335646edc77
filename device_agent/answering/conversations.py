"""Conversations between two turns: chain sessions kept parked, for the request whose prompt goes on where they end.

A session belongs to one tenant and is never shown to another, and to one request at a time. Its *kind* is what has to
be the same beside that: the drafter that has followed it, and the salt of its requests. Time is in seconds on any
one clock, handed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from device_agent.chain.chain import ChainSession
from wire.errors import SessionFailed

MIN_SHARED = 16
"""Tokens that a prompt must share with a conversation for it to be taken up: fewer are prefilled as fast."""

MAX_LOST = 4
"""Tokens at the end of its last prompt that a conversation may lose and still be the one that goes on: a chat template
may write there what it writes differently, or not at all, once the answer has been given."""


@dataclass(frozen=True)
class _Parked:
    tenant: str
    kind: Hashable
    ids: list[int]
    prompt: int
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

    def take(self, tenant: str, kind: Hashable, ids: Sequence[int], positions: int, now: float) -> ChainSession | None:
        """The session of ``tenant``, of this kind, that shares the longest beginning with the prompt and
        may reach ``positions``, cut back to what they share, at least one token of the prompt being left to do.

        None when none shares enough: ``MIN_SHARED`` tokens, half of what it holds, and its last prompt but for the end.
        Another conversation that only begins alike, with the same instructions say, would lose the rest. Once as many
        are kept as may be, half of what it holds will do, since something has to go anyway.
        """
        self.sweep(now)
        best, most = self._best(tenant, kind, list(ids), positions)
        if best is None:
            return None
        self._parked.remove(best)
        try:
            best.session.truncate(min(most, len(ids) - 1))
        except SessionFailed:  # It broke while it was parked, beyond what it can mend by itself.
            best.session.close()
            return None
        return best.session

    def held(self, tenant: str, kind: Hashable, ids: Sequence[int], positions: int, now: float) -> int:
        """Tokens of the prompt that ``take`` would bring now."""
        self.sweep(now)
        best, most = self._best(tenant, kind, list(ids), positions)
        return 0 if best is None else min(most, len(ids) - 1)

    def _best(self, tenant: str, kind: Hashable, wanted: list[int], positions: int) -> tuple[_Parked | None, int]:
        full, best, most = len(self._parked) >= self._limit, None, MIN_SHARED - 1
        for each in self._parked:
            if (each.tenant, each.kind) == (tenant, kind) and each.session.positions >= positions:
                common = shared(each.ids, wanted)
                goes_on = full or common + MAX_LOST >= each.prompt
                if common > most and 2 * common >= len(each.ids) and goes_on:
                    best, most = each, common
        return best, most

    def keep(
        self, tenant: str, kind: Hashable, ids: Sequence[int], prompt: int, session: ChainSession, now: float
    ) -> None:
        """Park a session, of this kind, that holds the tokens ``ids``, all of them answered, of which the
        first ``prompt`` were asked.

        What is too much then is closed: of the tenant that holds most, the oldest.
        """
        if not self._limit:
            session.close()
            return
        try:
            session.park()
        except SessionFailed:
            session.close()
            return
        except BaseException:
            session.close()
            raise
        self._parked.append(_Parked(tenant, kind, list(ids), prompt, session, session.nbytes, now))
        while len(self._parked) > self._limit:
            self._give_up(Counter(each.tenant for each in self._parked))
        while self.nbytes > self._max_bytes:
            held: Counter[str] = Counter()
            for each in self._parked:
                held[each.tenant] += each.nbytes
            self._give_up(held)

    def sweep(self, now: float) -> None:
        """Close what is too old."""
        while self._parked and now - self._parked[0].at >= self._max_age_s:
            self._parked.pop(0).session.close()

    def close(self) -> None:
        """Close all of them."""
        while self._parked:
            self._parked.pop().session.close()

    def _give_up(self, held: Counter[str]) -> None:
        """Close the oldest session of the tenant that has most of what is ``held``."""
        most = max(held.values())
        oldest = next(each for each in self._parked if held[each.tenant] == most)
        self._parked.remove(oldest)
        oldest.session.close()


def shared(a: list[int], b: list[int]) -> int:
    """How many tokens two sequences have in common from their beginning on."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # Whole slices are compared: prompts are long, and this runs on the event loop.
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
