"""Permits for what a device does at once, answers or prompts, shared fairly among tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from device_agent.sharing.permit_queue import PER_FREE, PermitQueue


class Permits:
    """So many permits; ``permit_queue`` says who gets the next."""

    def __init__(self, count: int, per_free: int = PER_FREE) -> None:
        self._queue: PermitQueue[asyncio.Future[None]] = PermitQueue(count, per_free)

    @property
    def waiting(self) -> int:
        """How many wait for permits."""
        return len(self._queue)

    @asynccontextmanager
    async def one(self, tenant: str, permits: int = 1) -> AsyncIterator[None]:
        """Wait for a permit, or for several, and hold it. One that is cancelled while it waits leaves no trace."""
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.add(tenant, ticket, permits)
        self._serve()
        try:
            await ticket
        except asyncio.CancelledError:
            if ticket.cancelled():
                self._queue.remove(tenant, ticket)
            else:  # The permit came in the same moment as the end.
                self._release(tenant, permits)
            raise
        try:
            yield
        finally:
            self._release(tenant, permits)

    def _release(self, tenant: str, permits: int) -> None:
        self._queue.release(tenant, permits)
        self._serve()

    def _serve(self) -> None:
        while (found := self._queue.next()) is not None:
            tenant, ticket, permits = found
            if ticket.cancelled():  # Its task has not come to say so yet.
                self._queue.release(tenant, permits)
            else:
                ticket.set_result(None)
