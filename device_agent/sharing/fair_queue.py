"""Whose work is next, fair among tenants. Pure: what the work is, and what it has cost, is handed in.

Start-time fair queueing: each tenant has a virtual time, what its work has cost so far. Who has the least goes next,
and the work of one tenant stays in order. One that comes, or comes back, begins where the least served of those who
are there stands, so that nobody saves up turns by waiting. So whatever one tenant queues, another's next work waits
for what runs, and for its share of what follows.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")

NOBODY: Final = ""
"""The tenant where there are no keys: it is the only one."""


class FairQueue(Generic[Item]):
    """Work of tenants, waiting and running.

    Args:
        most: works of one tenant that may run at once, so that all is never held by one; ``NOBODY`` has no such limit.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        assert most > 0
        self._most = most
        self._waiting: dict[str, deque[tuple[int, Item]]] = {}
        self._running: Counter[str] = Counter()
        self._times: dict[str, float] = {}
        self._floor = 0.0
        """The time at which what runs was begun: nobody who comes now begins below it."""
        self._added = self._taken = 0

    def __len__(self) -> int:
        """How much waits."""
        return self._added - self._taken

    @property
    def idle(self) -> bool:
        """Whether nothing waits or runs."""
        return not (self._waiting or self._running)

    def others_wait(self, tenant: str) -> bool:
        """Whether anything of another tenant waits."""
        return len(self._waiting) > (tenant in self._waiting)

    def add(self, tenant: str, item: Item) -> None:
        """``item`` waits, behind all that this tenant has added before."""
        line = self._waiting.get(tenant)
        if line is None:
            line = self._waiting[tenant] = deque()
            self._times[tenant] = max(self._times.get(tenant, 0.0), self._floor)
        self._added += 1
        line.append((self._added, item))

    def take(self) -> tuple[str, Item] | None:
        """What runs next, and whose it is; ``done`` must follow. None where nothing may run now."""
        waiting, times, running = self._waiting, self._times, self._running
        may = [each for each in waiting if each == NOBODY or running[each] < self._most]
        if not may:
            return None
        # What runs is not in the times yet. Of equals the one that has waited longest.
        tenant = min(may, key=lambda each: (times[each], running[each], waiting[each][0][0]))
        _, item = waiting[tenant].popleft()
        if not waiting[tenant]:
            del waiting[tenant]
        self._taken += 1
        running[tenant] += 1
        self._floor = max(self._floor, times[tenant])
        return tenant, item

    def done(self, tenant: str, cost: float) -> None:
        """What was taken of this tenant is done and has cost so much, 0 or more."""
        self._times[tenant] += cost
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        if self.idle:  # Everybody has had all they asked for.
            self._times.clear()
            self._floor = 0.0
        elif len(self._times) > 2 * (len(self._waiting) + len(self._running)):
            here = self._waiting.keys() | self._running.keys()
            self._times = {each: time for each, time in self._times.items() if each in here or time > self._floor}

    def clear(self) -> list[Item]:
        """Forget all that waits; in the order of their coming."""
        left = sorted((each for line in self._waiting.values() for each in line), key=lambda each: each[0])
        self._waiting.clear()
        self._taken = self._added
        return [item for _, item in left]
