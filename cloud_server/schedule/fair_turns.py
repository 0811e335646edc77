"""Whose turn it is among tenants: start-time fair queueing. Pure.

Each tenant has a virtual time: the rows it was served. The tenant that was served least goes first. One that comes back
after idling starts where the least served of those who waited stands.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


class FairTurns:
    """Who was served how much: the virtual time of every tenant that waits for one kind of work or lately did."""

    def __init__(self) -> None:
        self._times: dict[Hashable, int] = {}
        self._floor = 0

    def in_turn(self, waiting: Sequence[tuple[int, Hashable, Item]]) -> Iterator[Item]:
        """Give all that wait, each time what has the lowest turn of the least served tenant.

        ``serve`` counts at once: what is served after one of them decides which is the next.

        Args:
            waiting: turn, tenant, and what waits. No two turns are the same.
        """
        of_tenant: dict[Hashable, list[tuple[int, Item]]] = {}
        for turn, tenant, item in sorted(waiting, key=lambda each: -each[0]):
            of_tenant.setdefault(tenant, []).append((turn, item))
        self._times.update((tenant, self._time(tenant)) for tenant in of_tenant)
        order = [(self._times[tenant], line[-1][0], tenant) for tenant, line in of_tenant.items()]
        heapq.heapify(order)  # No two turns are the same, so tenants themselves are never compared.
        while order:
            tenant = order[0][2]
            line = of_tenant[tenant]
            yield line.pop()[1]
            if line:
                heapq.heapreplace(order, (self._times[tenant], line[-1][0], tenant))
            else:
                heapq.heappop(order)

    def serve(self, tenant: Hashable, rows: int) -> None:
        """Note that ``rows`` of a tenant run."""
        self._times[tenant] = self._time(tenant) + rows

    def settle(self, waiting: set[Hashable]) -> None:
        """Begin anew behind a step: these tenants still wait. Where none does, everybody has had all they asked for."""
        if not waiting:
            self._times.clear()
            self._floor = 0
            return
        self._floor = max(self._floor, min(map(self._time, waiting)))
        self._times = {tenant: time for tenant, time in self._times.items() if time > self._floor}

    def _time(self, tenant: Hashable) -> int:
        return max(self._floor, self._times.get(tenant, 0))
