"""What is kept of responses until a later turn goes on with them: bounded for each tenant and for all together.

Time is in seconds on any one clock, handed in where it is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.errors import RequestError

MOST_BYTES: Final = 2**20
"""Of one response with the conversation before it; a larger one is not kept."""


@dataclass(frozen=True)
class Bounds:
    """How much is kept: of one tenant so many responses, of so many bytes with the conversations before them; of all
    tenants so many bytes; and for how long. Where there is too much, the tenant's oldest go; where all have too much,
    the oldest of the tenant that has most."""

    responses: int = 256
    tenant_bytes: int = 16 * 2**20
    all_bytes: int = 256 * 2**20
    age_s: int = 24 * 3600


BOUNDS: Final = Bounds()


class Responses(Protocol):
    """Where responses are kept. Nobody meets those of another tenant."""

    async def put(self, tenant: str, id: str, data: bytes) -> bool:
        """Keep one; whether it is kept."""

    async def get(self, tenant: str, id: str) -> bytes | None:
        """Return one; None where there is none. Raises ``RequestError`` where that cannot be known."""

    async def delete(self, tenant: str, id: str) -> bool:
        """Forget one; whether there was one. Raises ``RequestError`` where that cannot be known."""


class MemoryResponses:
    """The ``Responses`` of a gateway that stands alone."""

    def __init__(self, bounds: Bounds = BOUNDS, now: Callable[[], float] = time.monotonic) -> None:
        self._bounds = bounds
        self._now = now
        self._kept: dict[str, dict[str, bytes]] = {}
        self._ages: dict[tuple[str, str], float] = {}
        """When each was put, the oldest first."""
        self._sizes: dict[str, int] = {}
        self._total = 0

    async def put(self, tenant: str, id: str, data: bytes) -> bool:
        if len(data) > MOST_BYTES:
            return False
        self._sweep()
        self._drop(tenant, id)
        self._kept.setdefault(tenant, {})[id] = data
        self._ages[tenant, id] = self._now()
        self._sizes[tenant] = self._sizes.get(tenant, 0) + len(data)
        self._total += len(data)
        while len(self._kept[tenant]) > self._bounds.responses or self._sizes[tenant] > self._bounds.tenant_bytes:
            self._drop(tenant, next(iter(self._kept[tenant])))
        while self._total > self._bounds.all_bytes:
            most = max(self._sizes, key=self._sizes.__getitem__)
            self._drop(most, next(iter(self._kept[most])))
        return True

    async def get(self, tenant: str, id: str) -> bytes | None:
        self._sweep()
        return self._kept.get(tenant, {}).get(id)

    async def delete(self, tenant: str, id: str) -> bool:
        self._sweep()
        return self._drop(tenant, id)

    def _sweep(self) -> None:
        now = self._now()
        while self._ages and now - self._ages[oldest := next(iter(self._ages))] >= self._bounds.age_s:
            self._drop(*oldest)

    def _drop(self, tenant: str, id: str) -> bool:
        if self._ages.pop((tenant, id), None) is None:
            return False
        size = len(self._kept[tenant].pop(id))
        self._sizes[tenant] -= size
        self._total -= size
        if not self._kept[tenant]:
            del self._kept[tenant], self._sizes[tenant]
        return True


def not_found(id: str, param: str | None = None) -> RequestError:
    """Nothing of this id is kept for whoever asks."""
    told = f"there is no response '{id[:64]}' here: it was not stored, has been deleted, or is too old"
    return RequestError(404, told, code="previous_response_not_found" if param else "not_found", param=param)


def unreachable() -> RequestError:
    """Responses are kept where nobody answers now."""
    told = "the store of responses cannot be reached now: send the whole conversation as 'input', or try again later"
    return RequestError(503, told, code="store_unavailable", retry_s=2.0)
