"""The waiting room, without agents: what is found is handed out in order, once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import RequestError, draining
from gateway.waiting import WaitingRoom

WISH = ("m", frozenset[str](), "")
OTHER = ("other", frozenset[str](), "")


class Slot:
    """Stands for a link with a slot reserved."""

    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        self.released += 1


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
        room.serve(find)  # As a change of an agent's load does.
        return slots[wish].pop() if slots[wish] else None

    room.serve(find)
    assert isinstance(await first, Slot) and isinstance(await other, Slot)
    assert not second.done() and len(room) == 1
    assert asked == [WISH, OTHER, WISH]
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert len(room) == 0


async def test_a_slot_that_comes_with_the_cancellation_is_given_back() -> None:
    """Exactly once."""
    room, slot = WaitingRoom(1), Slot()
    task = await waiting(room)
    room.serve(lambda wish: slot)  # type: ignore[arg-type, return-value]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (slot.released, len(room)) == (1, 0)


async def test_places_patience_and_sending_away() -> None:
    """429, 503, and whatever error is found instead."""
    room = WaitingRoom(1)
    task = await waiting(room, patience_s=0.02)
    with pytest.raises(RequestError) as full:
        await room.wait(WISH, 1.0)
    assert full.value.status == 429
    with pytest.raises(RequestError) as late:
        await task
    assert late.value.status == 503
    served, refused = await waiting(room), WaitingRoom(1)
    room.serve(lambda wish: draining())
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
    room.serve(lambda wish: next(given, None))  # type: ignore[arg-type, return-value]
    served: list[Any] = [await returned, await inside]
    assert served == slots
