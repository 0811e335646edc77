"""Permits for answers: nobody gets all of them, whoever comes gets one, and no permit is lost or given twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from contextlib import AsyncExitStack
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.sharing.permit_queue import NOBODY, PER_FREE, PermitQueue
from device_agent.sharing.permits import Permits

Ticket = TypeVar("Ticket", bound=Hashable)
TENANTS = ("a", "b", "c")
EVENTS = st.lists(st.tuples(st.sampled_from(["add", "remove", "release"]), st.sampled_from(TENANTS)), max_size=120)


def granted(queue: PermitQueue[Ticket]) -> list[tuple[str, Ticket]]:
    """All that may have a permit now."""
    found = []
    while (each := queue.next()) is not None:
        found.append(each[:2])
    return found


@given(EVENTS, st.integers(1, 12))
def test_whoever_waits_is_kept_out_by_a_rule(events: list[tuple[str, str]], permits: int) -> None:
    """A model of it: in order within a tenant, never more than there are, and who waits holds its share already or
    nothing is free."""
    queue: PermitQueue[int] = PermitQueue(permits)
    waiting: dict[str, list[int]] = {tenant: [] for tenant in TENANTS}
    held: Counter[str] = Counter()
    for number, (what, tenant) in enumerate(events):
        if what == "add":
            queue.add(tenant, number)
            waiting[tenant].append(number)
        elif what == "remove" and waiting[tenant]:
            queue.remove(tenant, waiting[tenant].pop(number % len(waiting[tenant])))
        elif what == "release" and held[tenant]:
            queue.release(tenant)
            held[tenant] -= 1
        for each, ticket in granted(queue):
            assert ticket == waiting[each].pop(0)
            held[each] += 1
        free = permits - held.total()
        assert free >= 0 and len(queue) == sum(map(len, waiting.values()))
        for each in TENANTS:
            assert not waiting[each] or not free or held[each] >= PER_FREE * free


@given(st.integers(4, 64), st.integers(1, 5))
def test_a_newcomer_finds_a_permit(permits: int, others: int) -> None:
    """However much the tenants want that are there, one more gets a permit at once while they are few."""
    queue: PermitQueue[int] = PermitQueue(permits)
    for tenant in range(others):
        for number in range(128):
            queue.add(str(tenant), number)
        granted(queue)
    if permits >= 4**others:
        queue.add("late", 0)
        assert granted(queue) == [("late", 0)]


def test_two_that_want_all_come_to_hold_as_many() -> None:
    """The second takes what is left, and grows with every answer of the first that ends."""
    queue: PermitQueue[str] = PermitQueue(32)
    held: Counter[str] = Counter()

    def serve() -> None:
        held.update(tenant for tenant, _ in granted(queue))

    for tenant in ("a", "b"):
        for number in range(400):
            queue.add(tenant, f"{tenant}{number}")
        serve()
    assert held["a"] == 24 and held["b"] == 6
    for _ in range(40):
        tenant = max(held, key=lambda each: (held[each], each))
        queue.release(tenant)
        held[tenant] -= 1
        serve()
    assert abs(held["a"] - held["b"]) <= 1 and 26 <= held["a"] + held["b"] < 32


def test_where_there_are_no_keys_all_slots_are_used() -> None:
    """Nobody can come for whom to leave some."""
    queue: PermitQueue[int] = PermitQueue(32)
    for number in range(40):
        queue.add(NOBODY, number)
    assert len(granted(queue)) == 32


@given(st.lists(st.integers(1, 6), min_size=1, max_size=40))
def test_whoever_takes_several_is_counted_so(sizes: list[int]) -> None:
    """Of a hundred permits, half of which are always left: no more is held than that and one ticket's, whoever comes
    finds some, and all are free in the end."""
    queue: PermitQueue[int] = PermitQueue(100, per_free=1)
    for number, size in enumerate(sizes):
        queue.add("a", number, size)
    held = []
    while (found := queue.next()) is not None:
        held.append(found[2])
    assert held == sizes[: len(held)] and sum(held) < 50 + 6
    assert len(held) == len(sizes) or sum(held) >= 50
    queue.add("b", -1, 6)
    assert queue.next() == ("b", -1, 6)
    for size in held:
        queue.release("a", size)
    queue.release("b", 6)
    assert queue._free == 100 and not queue._held


async def test_a_tenant_that_wants_all_leaves_some() -> None:
    """One request with 128 choices and then a small one of somebody else: that has its permit at once."""
    permits, release = Permits(32), asyncio.Event()

    async def hold(tenant: str, began: asyncio.Event) -> None:
        async with permits.one(tenant):
            began.set()
            await release.wait()

    greedy = [asyncio.create_task(hold("a", asyncio.Event())) for _ in range(128)]
    await asyncio.sleep(0)
    began = asyncio.Event()
    small = asyncio.create_task(hold("b", began))
    await asyncio.wait_for(began.wait(), 60)
    assert permits.waiting == 128 - 24
    release.set()
    await asyncio.wait_for(asyncio.gather(*greedy, small), 20.0)
    assert permits.waiting == 0


@pytest.mark.parametrize("early", [True, False])
async def test_who_is_cancelled_while_waiting_leaves_no_trace(early: bool) -> None:
    """Before its turn, or in the very moment of it: every permit is there for others afterwards."""
    permits, ended = Permits(1), []

    async def hold() -> None:
        async with permits.one("a"):
            ended.append("held")

    async with AsyncExitStack() as held:
        await held.enter_async_context(permits.one("a"))
        second, third = asyncio.create_task(hold()), asyncio.create_task(hold())
        await asyncio.sleep(0)
        assert permits.waiting == 2
        if early:
            second.cancel()  # It gets to say so only after the permit is free.
    second.cancel()  # Else the permit has just been given to it.
    results = await asyncio.wait_for(asyncio.gather(second, third, return_exceptions=True), 60)
    assert isinstance(results[0], asyncio.CancelledError) and results[1] is None and ended == ["held"]
    async with permits.one("b"):
        assert permits.waiting == 0
