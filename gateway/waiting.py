"""The waiting room: requests for which no agent is free, served in turns among tenants.

A tenant's own requests are served in the order of their priorities, the lowest first, and then in that in which they
came; among tenants the one is next that holds least at
the agents, and among equals the one that waits longest for its turn. Where all places are taken, a newcomer gets one of
whoever has most. It knows nothing of agents: whoever calls ``serve`` says, for each who waits, what there is for them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.agents import Reservation
from gateway.errors import RequestError, none_free, too_many
from gateway.policy import Wish
from gateway.shares import gives_way, next_in_turn


@dataclass(eq=False)
class _Waiter:
    wish: Wish
    room: asyncio.Future[Reservation]
    counted: bool
    priority: int


class WaitingRoom:
    """Bounded queues, one for each tenant that waits, with a deadline for each who waits."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._queues: dict[str, deque[_Waiter]] = {}
        """In the order of the tenants' turns; none is empty."""
        self._serving = False

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    async def wait(
        self, wish: Wish, patience_s: float, *, counted: bool = True, first: bool = False, priority: int = 0
    ) -> Reservation:
        """Wait until ``serve`` has found room at an agent, and return it.

        Args:
            counted: whether it takes a place, and goes when everybody is sent away. A prompt of a request that was let
                in before does neither.
            first: whether it goes before all others of its tenant.
            priority: it goes before those of its tenant with a higher one.

        Raises:
            RequestError: there is no place to wait, or it went to another tenant; no room came within ``patience_s``;
                or there will be none.
        """
        late = none_free(patience_s)
        if not patience_s:
            raise late  # Without taking anybody's place.
        if counted:
            self._make_room(wish.tenant)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(wish, loop.create_future(), counted, priority)
        queue = self._queues.setdefault(wish.tenant, deque())
        behind = (at for at, each in enumerate(queue) if first or each.priority > priority)
        queue.insert(next(behind, len(queue)), waiter)
        timer = loop.call_later(patience_s, _refuse, waiter, late)
        try:
            return await waiter.room
        except asyncio.CancelledError:
            if waiter.room.done() and not waiter.room.cancelled() and waiter.room.exception() is None:
                waiter.room.result().close()  # It came in the same moment as the end.
            raise
        finally:
            timer.cancel()
            self._remove(waiter)

    def serve(
        self, find: Callable[[Wish], Reservation | RequestError | None], held: Callable[[], Mapping[str, int]]
    ) -> None:
        """Hand out what there is to those who wait, in turns. Calling this from within changes nothing.

        Args:
            find: room at an agent for a wish; or why there will be none; or None: still to wait.
            held: the answers that each tenant has at agents then.
        """
        if self._serving:
            return
        self._serving = True
        try:
            self._serve(find, held)
        finally:
            self._serving = False

    def _serve(
        self, find: Callable[[Wish], Reservation | RequestError | None], held: Callable[[], Mapping[str, int]]
    ) -> None:
        hopeless: set[Wish] = set()
        while (waiter := self._next(hopeless, held())) is not None:
            found = find(waiter.wish)
            if found is None:
                hopeless.add(waiter.wish)
                continue
            self._remove(waiter)
            if isinstance(found, RequestError):
                _refuse(waiter, found)
                continue
            waiter.room.set_result(found)
            tenant = waiter.wish.tenant
            if tenant in self._queues:  # It had its turn: all others have theirs first.
                self._queues[tenant] = self._queues.pop(tenant)

    def refuse_all(self, error: RequestError) -> None:
        """Send everybody away who takes a place."""
        for queue in self._queues.values():
            for waiter in queue:
                if waiter.counted:
                    _refuse(waiter, error)

    def _next(self, hopeless: set[Wish], held: Mapping[str, int]) -> _Waiter | None:
        heads: dict[str, _Waiter] = {}
        for tenant, queue in self._queues.items():
            head = next((each for each in queue if not each.room.done() and each.wish not in hopeless), None)
            if head is not None:
                heads[tenant] = head
        tenant_next = next_in_turn(heads, held)
        return heads[tenant_next] if tenant_next is not None else None

    def _make_room(self, newcomer: str) -> None:
        places = {tenant: sum(map(_takes_place, queue)) for tenant, queue in self._queues.items()}
        if sum(places.values()) < self._places:
            return
        full = too_many("all device agents are busy and the waiting room is full; try again later")
        loser = gives_way(places, newcomer)
        if loser is None:
            raise full
        _refuse(next(each for each in reversed(self._queues[loser]) if _takes_place(each)), full)

    def _remove(self, waiter: _Waiter) -> None:
        tenant = waiter.wish.tenant
        queue = self._queues.get(tenant)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._queues[tenant]


def _takes_place(waiter: _Waiter) -> bool:
    return waiter.counted and not waiter.room.done()


def _refuse(waiter: _Waiter, error: RequestError) -> None:
    if not waiter.room.done():
        waiter.room.set_exception(error)
