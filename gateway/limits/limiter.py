"""Who may ask for something now: a request's grant, and the memory that knows what each tenant has had."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final, NamedTuple, Protocol

from gateway.limits.bucket import Bucket
from gateway.limits.limits import Limits, Standing

MOST_TENANTS: Final = 10_000
"""Whose last minute is remembered; who has asked nothing for longest is forgotten first."""

STEP: Final = 256
"""Tokens that are taken at once for an answer that goes on beyond what was reserved for it."""

AHEAD: Final = 64
"""Tokens that an answer of unsaid length has left when more are asked for, so that it needs not wait."""

AT_ONCE: Final = 32
"""Tokens of an answer that may come together: a draft. Where no more are to be had it ends while so many are left."""

MOST_TRIES: Final = 3
"""Of taking what is left of a limit: somebody else may have taken it meanwhile."""


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

    def settle(self, tenant: str, taken: Taken, more: int, mine: int, counts: bool = True) -> None:
        """A request is over: it had ``more`` tokens than were taken; ``mine`` are left open here. Where it does not
        count, it is given back itself. Returns at once."""

    def restate(self, tenant: str, mine: int) -> None:
        """So many requests are open here, whatever was said before. Returns at once."""


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

    def settle(self, tenant: str, taken: Taken, more: int, mine: int, counts: bool = True) -> None:
        requests, tokens = self._of(tenant)
        tokens.settle(self._clock(), taken.second, more)
        if not counts:
            requests.settle(self._clock(), taken.second, -1)

    def restate(self, tenant: str, mine: int) -> None:
        """Nothing is kept of it: ``take`` is told."""

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

    Args:
        end: told, once, by how many tokens the request has missed those reserved, and whether it counts as one.
        more: takes up to so many tokens beside, and returns how many; None: tokens are not limited.
        unsaid: the request does not say how long its answer may be.

    Attributes:
        headers: what the response says of the limits.
        tokens: those reserved at the door; whoever answers sets what it came to.
    """

    def __init__(
        self,
        headers: dict[str, str],
        tokens: int,
        end: Callable[[int, bool], None],
        more: Callable[[int], Awaitable[int]] | None = None,
        *,
        unsaid: bool = False,
    ) -> None:
        self.headers = headers
        self.tokens = tokens
        self._reserved = tokens
        self._end: Callable[[int, bool], None] | None = end
        self._more = more
        self._ahead, self._left_over = (AHEAD, AT_ONCE) if unsaid else (0, 0)
        self._asking: asyncio.Task[None] | None = None
        self._exhausted = False

    def spend(self, cost: int) -> bool:
        """Note what the request has cost so far, and take more in good time. Returns at once whether its answer may go
        on; while a store that all gateways share is asked, it may."""
        if self._more is None:
            return True
        left = self._reserved - cost
        if left < self._ahead and self._asking is None and not self._exhausted:
            self._asking = asyncio.ensure_future(self._take(self._more, STEP - min(left, 0)))
        return left >= self._left_over or not self._exhausted

    async def _take(self, more: Callable[[int], Awaitable[int]], tokens: int) -> None:
        taken = await more(tokens)
        self._reserved += taken
        self._exhausted = taken < tokens
        self._asking = None

    def close(self, counts: bool = True) -> None:
        """The request is over; ``counts``: it was one. Safe to call twice."""
        end, self._end = self._end, None
        if end is not None:
            end(self.tokens - self._reserved, counts)


class Limiter:
    """All grants of a gateway.

    Attributes:
        open: the requests of each limited tenant that are open here.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.open: Counter[str] = Counter()

    async def admit(self, tenant: str, limits: Limits, tokens: int, *, unsaid: bool = False) -> Grant | None:
        """Return leave for a request of so many tokens, or ``unsaid`` how many; None where nothing is limited.

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
            # While it asked it was open, and others that were granted or ended have said so; and who gives up may be
            # granted yet.
            self._left(tenant)
            self._store.restate(tenant, self.open[tenant])
            raise

        steps, over = [(taken, tokens)], False

        def end(missed: int, counts: bool) -> None:
            nonlocal over
            over = True
            self._left(tenant)
            for step, amount in reversed(steps):  # What was taken last is the first to go back.
                change = max(missed, -amount) if limits.tokens else 0
                missed -= change
                first = step is taken
                self._store.settle(tenant, step, change, self.open[tenant], counts or not first)
                if not missed and (counts or first):
                    break

        async def more(wanted: int) -> int:
            found = await self._part(tenant, limits.tokens, wanted)
            if found is None:
                return 0
            if over:  # Meanwhile.
                self._store.settle(tenant, found[0], -found[1], self.open[tenant])
                return 0
            steps.append(found)
            return found[1]

        return Grant(taken.standing.headers(limits), tokens, end, more if limits.tokens else None, unsaid=unsaid)

    async def _part(self, tenant: str, limit: int, wanted: int) -> tuple[Taken, int] | None:
        """Take so many tokens, or as many as are left; None where there are none."""
        for _ in range(MOST_TRIES):
            taken = await self._store.take(tenant, Limits(tokens=limit), wanted, self.open[tenant])
            if taken.granted:
                return taken, wanted
            wanted = min(wanted, limit - taken.standing.tokens.used(taken.standing.now))
            if wanted <= 0:
                break
        return None

    def _left(self, tenant: str) -> None:
        self.open[tenant] -= 1
        if self.open[tenant] <= 0:
            del self.open[tenant]
