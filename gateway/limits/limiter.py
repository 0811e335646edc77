"""Who may ask for something now: a request's grant, and the memory that knows what each tenant has had."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple, Protocol

from gateway.limits.bucket import Bucket
from gateway.limits.limits import Limits, Standing

MOST_TENANTS: Final = 10_000
"""Whose last minute is remembered; who has asked nothing for longest is forgotten first."""


class Taken(NamedTuple):
    """How a tenant stands behind its request.

    Attributes:
        granted: whether it is within the limits; only then anything was taken.
        second: of the tokens taken, by this process' clock, to settle them by.
        shared_second: the same by the clock of the store that all gateways share, where that was asked.
    """

    granted: bool
    standing: Standing
    second: int = 0
    shared_second: int | None = None


class Store(Protocol):
    """Where it is kept what tenants have had."""

    async def take(self, tenant: str, limits: Limits, tokens: int, mine: int) -> Taken:
        """Take a request and its tokens, all or nothing.

        Args:
            mine: requests of the tenant that are open at this gateway, this one among them.
        """

    def settle(self, tenant: str, taken: Taken, more: int, mine: int) -> None:
        """A request is over: it had ``more`` tokens than were taken; ``mine`` are left open here. Returns at once."""


class MemoryStore:
    """The ``Store`` of one gateway.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tenants: OrderedDict[str, tuple[Bucket, Bucket]] = OrderedDict()

    async def take(self, tenant: str, limits: Limits, tokens: int, mine: int) -> Taken:
        return self.taken(tenant, limits, tokens, mine)

    def taken(self, tenant: str, limits: Limits, tokens: int, mine: int) -> Taken:
        """See ``Store.take``, at once."""
        standing = Standing(self._clock(), *self._of(tenant), mine)
        if not standing.allows(limits, tokens):
            return Taken(False, standing)
        return Taken(True, standing, standing.take(limits, tokens))

    def note(self, tenant: str, limits: Limits, tokens: int) -> int:
        """A request that another store has granted was taken too. Returns the second, see ``Taken``."""
        return Standing(self._clock(), *self._of(tenant)).take(limits, tokens)

    def settle(self, tenant: str, taken: Taken, more: int, mine: int) -> None:
        self._of(tenant)[1].settle(self._clock(), taken.second, more)

    def latest(self, most: int) -> list[str]:
        """Return who has asked last, the latest first."""
        return list(islice(reversed(self._tenants), most))

    def _of(self, tenant: str) -> tuple[Bucket, Bucket]:
        buckets = self._tenants.setdefault(tenant, (Bucket(), Bucket()))
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > MOST_TENANTS:
            self._tenants.popitem(last=False)
        return buckets


class Grant:
    """Leave for one request; whoever has it closes it.

    Attributes:
        headers: what the response says of the limits.
        tokens: those reserved; whoever answers sets what it came to.
    """

    def __init__(self, headers: dict[str, str], tokens: int, end: Callable[[int], None]) -> None:
        self.headers = headers
        self.tokens = tokens
        self._reserved = tokens
        self._end: Callable[[int], None] | None = end

    def close(self) -> None:
        """The request is over. Safe to call twice."""
        end, self._end = self._end, None
        if end is not None:
            end(self.tokens - self._reserved)


class Limiter:
    """All grants of a gateway.

    Attributes:
        open: the requests of each limited tenant that are open here.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.open: Counter[str] = Counter()

    async def admit(self, tenant: str, limits: Limits, tokens: int) -> Grant | None:
        """Return leave for a request of so many tokens; None where nothing is limited.

        Raises:
            RequestError: it is over a limit; the error says which, and when to come back.
        """
        if not limits.some:
            return None
        self.open[tenant] += 1
        try:
            taken = await self._store.take(tenant, limits, tokens, self.open[tenant])
            if not taken.granted:
                raise taken.standing.refusal(limits, tokens)
        except BaseException:
            self._left(tenant)
            raise

        def end(more: int) -> None:
            self._left(tenant)
            self._store.settle(tenant, taken, more if limits.tokens else 0, self.open[tenant])

        return Grant(taken.standing.headers(limits), tokens, end)

    def _left(self, tenant: str) -> None:
        self.open[tenant] -= 1
        if self.open[tenant] <= 0:
            del self.open[tenant]
