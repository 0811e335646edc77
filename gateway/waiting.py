"""The waiting room: requests for which no agent is free, served in the order in which they came.

It knows nothing of agents: whoever calls ``serve`` says, for each who waits, what there is for them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gateway.agents import AgentLink
from gateway.errors import RequestError, queue_full, waited_too_long

Wish = tuple[str, frozenset[str], str]
"""A model, the agents that shall not be used, and the drafter named (empty: none is)."""

Find = Callable[[Wish], "AgentLink | RequestError | None"]
"""A link with a slot reserved; or why there will be none; or None: still to wait."""


@dataclass(eq=False)
class _Waiter:
    wish: Wish
    slot: asyncio.Future[AgentLink]
    counted: bool


class WaitingRoom:
    """A bounded queue with a deadline for each who waits."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiters: deque[_Waiter] = deque()
        self._serving = False

    def __len__(self) -> int:
        return len(self._waiters)

    async def wait(self, wish: Wish, patience_s: float, *, counted: bool = True, first: bool = False) -> AgentLink:
        """A link with a slot reserved, as soon as ``serve`` finds one.

        Args:
            counted: takes a place, and goes when everybody is sent away. What belongs to a request that was let in
                before does neither.
            first: goes before all others.

        Raises:
            RequestError: no place to wait, nothing within ``patience_s``, or what ``serve`` has found instead.
        """
        if counted and sum(waiter.counted for waiter in self._waiters) >= self._places:
            raise queue_full()
        loop = asyncio.get_running_loop()
        waiter = _Waiter(wish, loop.create_future(), counted)
        if first:
            self._waiters.appendleft(waiter)
        else:
            self._waiters.append(waiter)
        timer = loop.call_later(patience_s, _refuse, waiter, waited_too_long(patience_s))
        try:
            return await waiter.slot
        except asyncio.CancelledError:
            if waiter.slot.done() and not waiter.slot.cancelled() and waiter.slot.exception() is None:
                waiter.slot.result().release()  # The slot came in the same moment as the end.
            raise
        finally:
            timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def serve(self, find: Find) -> None:
        """Ask ``find`` for each who waits, in order. What it changes may lead here again: the loop just goes on."""
        if self._serving:
            return
        self._serving = True
        hopeless: set[Wish] = set()
        for waiter in list(self._waiters):
            if waiter.slot.done() or waiter.wish in hopeless:
                continue
            found = find(waiter.wish)
            if found is None:
                hopeless.add(waiter.wish)
            elif isinstance(found, RequestError):
                _refuse(waiter, found)
            else:
                self._waiters.remove(waiter)
                waiter.slot.set_result(found)
        self._serving = False

    def refuse_all(self, error: RequestError) -> None:
        """Send everybody away who takes a place."""
        for waiter in self._waiters:
            if waiter.counted:
                _refuse(waiter, error)


def _refuse(waiter: _Waiter, error: RequestError) -> None:
    if not waiter.slot.done():
        waiter.slot.set_exception(error)
