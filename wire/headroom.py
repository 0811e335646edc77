"""Headroom of one connection: whether it takes another long message, and waiting until it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from wire.errors import ConnectionFailed
from wire.limits import MAX_QUEUED_BYTES, PARTY_BYTES
from wire.outbox import Outbox


class Headroom:
    """What an outbox takes beside what waits in it.

    Args:
        failure: why the connection has ended, None while it lives.
    """

    def __init__(self, outbox: Outbox, failure: Callable[[], ConnectionFailed | None]) -> None:
        self._outbox = outbox
        self._failure = failure
        self._waiters: list[asyncio.Future[None]] = []

    def takes(self, size: int, party: Hashable) -> bool:
        """Whether a long message of so many bytes may be posted now; one of a ``party`` also where no other of it waits
        and as far as it has a share left."""
        waiting = self._outbox.waiting(party) if party is not None else 0
        return self._outbox.long_bytes + size <= MAX_QUEUED_BYTES and (not waiting or waiting + size <= PARTY_BYTES)

    async def wait(self, size: int, party: Hashable) -> None:
        """Until it ``takes`` that. Who came first is told first.

        Raises:
            ConnectionFailed: the connection has ended.
        """
        while (failure := self._failure()) is None and not self.takes(size, party):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if failure is not None:
            raise failure

    def look(self) -> None:
        """Something has left, or the connection has ended: have those who wait look again."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
