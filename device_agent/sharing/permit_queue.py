"""Who gets the next permit, where each is held for as long as somebody likes. Pure: tickets in, tickets out.

A permit is not given back before its answer is complete, so order alone is not fair: whoever comes first would hold all
of them for minutes. So a tenant may take another one only while it holds less than so many times those that are free:
alone it ends up with three in four, say, and who comes then finds some, takes them by the same rule, and grows as the
first one's answers end. Of those who may, who holds fewest goes first, and each tenant's in order.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Ticket = TypeVar("Ticket", bound=Hashable)

NOBODY: Final = ""
"""The tenant where there are no keys: it is the only one."""

PER_FREE: Final = 3
"""Permits that a tenant may hold for each that is free; where there are no keys, there is nobody to leave any for."""


class PermitQueue(Generic[Ticket]):
    """Tickets that wait for permits, one each or more, and how many each tenant holds. No two tickets are equal.

    Args:
        per_free: permits that a tenant may hold for each that is free.
    """

    def __init__(self, permits: int, per_free: int = PER_FREE) -> None:
        assert permits > 0 and per_free > 0
        self._free = permits
        self._per_free = per_free
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, OrderedDict[Ticket, tuple[int, int]]] = {}
        """Each with its number and its permits."""
        self._number = 0

    def __len__(self) -> int:
        """Tickets that wait."""
        return sum(map(len, self._waiting.values()))

    def add(self, tenant: str, ticket: Ticket, permits: int = 1) -> None:
        """A ticket waits for so many permits; it has them all as soon as it may have the first, so that they are never
        too many."""
        assert permits > 0
        self._number += 1
        self._waiting.setdefault(tenant, OrderedDict())[ticket] = self._number, permits

    def remove(self, tenant: str, ticket: Ticket) -> None:
        """A ticket waits no more, if it still does."""
        line = self._waiting.get(tenant)
        if line is not None and line.pop(ticket, None) is not None and not line:
            del self._waiting[tenant]

    def next(self) -> tuple[str, Ticket, int] | None:
        """The tenant, the ticket, and its permits, which it has from now on; None where nobody may have any now."""
        waiting, held = self._waiting, self._held
        may = [each for each in waiting if self._may(each)]
        if not may:
            return None
        tenant = min(may, key=lambda each: (held[each], next(iter(waiting[each].values()))))
        ticket, (_, permits) = waiting[tenant].popitem(last=False)
        if not waiting[tenant]:
            del waiting[tenant]
        held[tenant] += permits
        self._free -= permits
        return tenant, ticket, permits

    def release(self, tenant: str, permits: int = 1) -> None:
        """So many of this tenant's permits, those of one ticket, are free again."""
        assert self._held[tenant] >= permits
        self._held[tenant] -= permits
        if not self._held[tenant]:
            del self._held[tenant]
        self._free += permits

    def _may(self, tenant: str) -> bool:
        return self._free > 0 and (tenant == NOBODY or self._held[tenant] < self._per_free * self._free)
