"""What one agent says of its work while somebody watches: the last of it, and what is over since it was looked at."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from wire.observed_messages import Mark, Observed, ObservedRequest

MAX_KEPT: Final = 2048
"""Marks that wait until somebody looks, which is several times a second."""

REMEMBERED: Final = 512
"""Requests that are over and whose tenants are known, so that their last marks are told to the right ones."""


class Passed(NamedTuple):
    """A chunk or a round that was over ``at`` this moment, in seconds since 1970, and whose request it was of."""

    tenant: str
    at: float
    mark: Mark


class Observation:
    """Of one connection of an agent.

    Attributes:
        every_ms: how often it was asked to say something; 0: never, or no more.
        last: what it said last; None where it has said nothing yet.
        lost: marks that were lost, there or here.
    """

    def __init__(self) -> None:
        self.every_ms = 0
        self.last: Observed | None = None
        self.lost = 0
        self._tenants: dict[int, str] = {}
        self._over: OrderedDict[int, str] = OrderedDict()
        self._requests: dict[int, ObservedRequest] = {}
        self._passed: deque[Passed] = deque(maxlen=MAX_KEPT)

    def began(self, number: int, tenant: str) -> None:
        """A request is sent there, which it calls by this number."""
        self._tenants[number] = tenant

    def ended(self, number: int) -> None:
        """It is over, for this gateway at least."""
        self._over[number] = self._tenants.pop(number)
        if len(self._over) > REMEMBERED:
            self._over.popitem(last=False)

    def heard(self, observed: Observed, now: float) -> None:
        """It has said something, ``now`` in seconds since 1970. What it says of requests that nobody here has sent
        counts for nothing."""
        if not self.every_ms:
            return  # It was told to stop a moment ago.
        self.last = observed
        self._requests = {each.request: each for each in observed.requests}
        self.lost += observed.lost_marks
        for mark in observed.marks:
            tenant = self._tenants.get(mark.request, self._over.get(mark.request))
            if tenant is not None:
                self.lost += len(self._passed) == MAX_KEPT
                self._passed.append(Passed(tenant, now - mark.ago_us / 1e6, mark))

    def of(self, number: int) -> ObservedRequest | None:
        """Return what it said last of a request."""
        return self._requests.get(number)

    def take(self) -> list[Passed]:
        """Return what is over since this was last called."""
        passed = list(self._passed)
        self._passed.clear()
        return passed

    def forget(self) -> None:
        """Nobody watches any more."""
        self.every_ms, self.last = 0, None
        self._requests = {}
        self._passed.clear()
