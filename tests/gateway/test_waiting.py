"""The waiting room, without agents: what is found is handed out in order, once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import RequestError, draining
from gateway.policy import Wish
from gateway.waiting import WaitingRoom

WISH = Wish("m")
OTHER = Wish("other")


def nothing() -> Any:
    return {}


class Slot:
    """Stands for room at an agent."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


async def waiting(room: WaitingRoom, wish: Any = WISH, patience_s: float = 5.0) -> asyncio.Task[Any]:
    task = asyncio.create_task(room.wait(wish, patience_s))
    await asyncio.sleep(0)
    return task


async def test_in_order_and_each_slot_once() -> None:
    """A wish that finds nothing does not hold up another wish, but its own like."""
    room = WaitingRoom(10)
    first, other, second = await waiting(room), await waiting(room, OTHER), await waiting(room)
    slots: dict[Any, list[Any]] = {WISH: [Slot()], OTHER: [Slot()]}
    asked = []

    def find(wish: Any) -> Any:
        asked.append(wish)
        room.serve(find, nothing)  # As a change of an agent's load does.
        return slots[wish].pop() if slots[wish] else None

    room.serve(find, nothing)
    assert isinstance(await first, Slot) and isinstance(await other, Slot)
    assert not second.done() and len(room) == 1
    assert asked == [WISH, OTHER, WISH]
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert len(room) == 0


def of(tenant: str) -> Any:
    return Wish("m", tenant=tenant)


async def test_the_lowest_priority_goes_first_among_a_tenant_s_own() -> None:
    """Equals in the order in which they came; another tenant's turn comes no later by it, and one goes before all."""
    room, order = WaitingRoom(10), list[tuple[str, int]]()

    async def one(tenant: str, priority: int, first: bool = False) -> None:
        await room.wait(of(tenant), 30.0, priority=priority, first=first)
        order.append((tenant, priority))

    asked = [("a", 1, False), ("a", 0, False), ("b", 5, False), ("a", -1, False), ("a", 0, False), ("a", 9, True)]
    tasks = [asyncio.create_task(one(*each)) for each in asked]
    await asyncio.sleep(0)
    slots: list[Any] = []
    for _ in tasks:
        slots.append(Slot())
        room.serve(lambda wish: slots.pop() if slots else None, nothing)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == [("a", 9), ("b", 5), ("a", -1), ("a", 0), ("a", 0), ("a", 1)]


async def test_tenants_take_turns() -> None:
    """However many requests one of them has; each tenant's own in order."""
    room = WaitingRoom(10)
    tasks = [await waiting(room, of(tenant)) for tenant in "aaaabbc"]
    served: list[str] = []

    def find(wish: Any) -> Any:
        served.append(wish.tenant)
        return Slot()

    room.serve(find, nothing)
    assert "".join(served) == "abcabaa"
    await asyncio.gather(*tasks)
    for tenant in "ab":  # Who comes back while others wait is behind them.
        tasks.append(await waiting(room, of(tenant)))
    served.clear()
    room.serve(lambda wish: None if served else find(wish), nothing)
    tasks.append(await waiting(room, of("a")))
    room.serve(find, nothing)
    assert "".join(served) == "aba"
    await asyncio.gather(*tasks)


async def test_who_holds_least_is_next() -> None:
    """And a tenant that may have no more holds nobody else up."""
    room, held = WaitingRoom(10), {"a": 3, "b": 1}
    tasks = [await waiting(room, of(tenant)) for tenant in "abcc"]
    served: list[str] = []

    def find(wish: Any) -> Any:
        if wish.tenant == "a":
            return None
        held[wish.tenant] = held.get(wish.tenant, 0) + 1
        served.append(wish.tenant)
        return Slot()

    room.serve(find, lambda: held)
    assert "".join(served) == "cbc" and len(room) == 1
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_full_room_has_a_place_for_a_newcomer() -> None:
    """Whoever has most loses its last one, and nobody loses more than evens it out."""
    room = WaitingRoom(4)
    greedy = [await waiting(room, of("a")) for _ in range(4)]
    inside = asyncio.create_task(room.wait(of("a"), 5.0, counted=False))
    await asyncio.sleep(0)
    others = [await waiting(room, of("b")), await waiting(room, of("b"))]
    for late in (greedy[3], greedy[2]):
        with pytest.raises(RequestError) as sent_away:
            await late
        assert sent_away.value.status == 429 and int(sent_away.value.headers["Retry-After"]) >= 1
    for tenant in "ab":
        with pytest.raises(RequestError):
            await room.wait(of(tenant), 1.0)
    others.append(await waiting(room, of("c")))
    with pytest.raises(RequestError):
        await greedy[1]
    assert len(room) == 5 and not inside.done() and not any(each.done() for each in others)
    room.serve(lambda wish: Slot(), nothing)  # type: ignore[arg-type, return-value]
    assert all(isinstance(each, Slot) for each in await asyncio.gather(greedy[0], inside, *others))
    assert len(room) == 0


async def test_a_bug_in_finding_leaves_the_room_open() -> None:
    """Who waits is served the next time; else nobody would ever be again."""
    room = WaitingRoom(1)
    task = await waiting(room)
    with pytest.raises(ZeroDivisionError):
        room.serve(lambda wish: 1 / 0, nothing)  # type: ignore[arg-type, return-value]
    room.serve(lambda wish: Slot(), nothing)  # type: ignore[arg-type, return-value]
    assert isinstance(await task, Slot)


async def test_a_slot_that_comes_with_the_cancellation_is_given_back() -> None:
    """Exactly once."""
    room, slot = WaitingRoom(1), Slot()
    task = await waiting(room)
    room.serve(lambda wish: slot, nothing)  # type: ignore[arg-type, return-value]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (slot.closed, len(room)) == (1, 0)


async def test_places_patience_and_sending_away() -> None:
    """429, 503, and whatever error is found instead."""
    room = WaitingRoom(1)
    task = await waiting(room, patience_s=0.2)
    with pytest.raises(RequestError) as full:
        await room.wait(WISH, 1.0)
    assert full.value.status == 429
    with pytest.raises(RequestError) as late:
        await task
    assert late.value.status == 503
    served, refused = await waiting(room), WaitingRoom(1)
    room.serve(lambda wish: draining(), nothing)
    sent_away = await waiting(refused)
    refused.refuse_all(draining())
    for task in (served, sent_away):
        with pytest.raises(RequestError) as away:
            await task
        assert away.value.code == "draining"
    assert len(room) == len(refused) == 0


async def test_who_was_let_in_before_takes_no_place_and_stays() -> None:
    """Neither refused by a full room nor filling it, nor sent away; ``first`` goes before all others."""
    room, slots = WaitingRoom(1), [Slot(), Slot()]
    inside = asyncio.create_task(room.wait(WISH, 5.0, counted=False))
    await asyncio.sleep(0)
    outside = await waiting(room)
    returned = asyncio.create_task(room.wait(WISH, 5.0, counted=False, first=True))
    await asyncio.sleep(0)
    room.refuse_all(draining())
    with pytest.raises(RequestError):
        await outside
    given = iter(slots)
    room.serve(lambda wish: next(given, None), nothing)  # type: ignore[arg-type, return-value]
    served: list[Any] = [await returned, await inside]
    assert served == slots
