"""The device's one compute thread: in order, and idle work makes way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from threading import Event
from time import sleep
from typing import Any, cast

import pytest

from device_agent.sharing.compute import Compute, Lane, served_tenant, tell

LONG = 1_000_000_000
WITHIN_S = 10.0


@pytest.fixture
async def compute() -> AsyncIterator[Compute]:
    """A compute thread, stopped afterwards."""
    made = Compute()
    yield made
    made.stop()


async def test_work_runs_in_order(compute: Compute) -> None:
    """First come, first served; afterwards it is idle."""
    done: list[int] = []
    for number in range(20):
        last = compute.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    await asyncio.wait_for(last, WITHIN_S)
    assert done == list(range(20)) and compute.queue.idle


async def test_idle_work_ends_by_itself(compute: Compute) -> None:
    """After so many steps, when a step says that nothing is left, and at once where it is enough already."""
    steps = 0

    def step(more: bool = True) -> bool:
        nonlocal steps
        steps += 1
        return more

    await asyncio.wait_for(compute.lane().submit_while_idle(step, 7, lambda: False), WITHIN_S)
    assert steps == 7
    await asyncio.wait_for(compute.lane().submit_while_idle(lambda: step(False), 7, lambda: False), WITHIN_S)
    assert steps == 8
    await asyncio.wait_for(compute.lane().submit_while_idle(step, 7, lambda: True), WITHIN_S)
    assert steps == 8
    await asyncio.wait_for(compute.lane().submit_while_idle(step, 7, lambda: steps > 10), WITHIN_S)
    assert steps == 11


async def test_idle_work_makes_way(compute: Compute) -> None:
    """What is submitted meanwhile waits for one step at most, though there would be work for hours."""
    began = Event()

    def step() -> bool:
        began.set()
        return True

    idle = compute.lane().submit_while_idle(step, LONG, lambda: False)
    assert await asyncio.get_running_loop().run_in_executor(None, began.wait, WITHIN_S)
    assert await asyncio.wait_for(compute.submit(lambda: 5), WITHIN_S) == 5
    await asyncio.wait_for(idle, WITHIN_S)


async def test_idle_work_ends_with_the_thread(compute: Compute) -> None:
    """A device that stops does not wait for it."""
    began = Event()

    def step() -> bool:
        began.set()
        return True

    idle = compute.lane().submit_while_idle(step, LONG, lambda: False)
    assert await asyncio.get_running_loop().run_in_executor(None, began.wait, WITHIN_S)
    compute.stop()
    await asyncio.wait_for(idle, WITHIN_S)


async def test_a_step_that_fails_is_heard_of(compute: Compute) -> None:
    """By whoever waits for the idle work; the thread goes on."""

    def broken() -> bool:
        raise ValueError("a step")

    with pytest.raises(ValueError, match="a step"):
        await asyncio.wait_for(compute.lane().submit_while_idle(broken, 3, lambda: False), WITHIN_S)
    assert await asyncio.wait_for(compute.submit(lambda: 5), WITHIN_S) == 5


async def test_tenants_take_turns(compute: Compute, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a tenant with much work queued, another's waits for what runs, and for as much of the first one's as it
    has had itself; each one's own stays in order."""
    held, began, clock = Event(), Event(), [0.0]
    monkeypatch.setattr("device_agent.sharing.compute.perf_counter", lambda: clock[0])

    def hold() -> None:
        began.set()
        assert held.wait(WITHIN_S)
        clock[0] += 1.0

    done: list[str] = []
    first = compute.submit(hold, "greedy")
    assert await asyncio.get_running_loop().run_in_executor(None, began.wait, WITHIN_S)
    greedy = [compute.submit(lambda number=number: done.append(f"a{number}"), "greedy") for number in range(24)]  # type: ignore[misc]
    small = [compute.submit(lambda number=number: done.append(f"b{number}"), "small") for number in range(3)]  # type: ignore[misc]
    held.set()
    await asyncio.wait_for(asyncio.gather(first, *greedy, *small), WITHIN_S)
    assert done[:3] == ["b0", "b1", "b2"], "the other has had all the time that it held the thread"
    assert done[3:] == [f"a{number}" for number in range(24)]


async def test_a_session_keeps_its_lane(compute: Compute) -> None:
    """Its work is that of the tenant who was served when it was opened, from whichever task it is asked for: so its
    order is that of its rows."""
    token = served_tenant.set("a")
    lane = compute.lane()
    served_tenant.reset(token)
    assert lane.tenant == "a" and compute.lane().tenant == ""
    held, began, done = Event(), Event(), []

    def hold() -> None:
        began.set()
        assert held.wait(WITHIN_S)

    first = compute.submit(hold, "a")
    assert await asyncio.get_running_loop().run_in_executor(None, began.wait, WITHIN_S)
    futures = []
    for number, tenant in enumerate(("a", "b", "", "a")):
        served_tenant.set(tenant)
        futures.append(lane.submit(lambda number=number: done.append(number)))  # type: ignore[misc]
    served_tenant.set("")
    held.set()
    await asyncio.wait_for(asyncio.gather(first, *futures), WITHIN_S)
    assert done == [0, 1, 2, 3]


async def test_idle_work_makes_way_for_what_waited_before(compute: Compute) -> None:
    """Also where its tenant's turn comes first, and it costs its tenant no turn afterwards."""
    held, began = Event(), Event()

    def hold() -> None:
        began.set()
        assert held.wait(WITHIN_S)

    steps = 0

    def step() -> bool:
        nonlocal steps
        steps += 1
        return True

    first = compute.submit(hold, "greedy")
    assert await asyncio.get_running_loop().run_in_executor(None, began.wait, WITHIN_S)
    waits = compute.submit(lambda: None, "greedy")
    idle = Lane(compute, "small").submit_while_idle(step, 1000, lambda: False)
    held.set()
    await asyncio.wait_for(asyncio.gather(first, waits, idle), WITHIN_S)
    assert steps == 0


async def test_what_waits_is_cancelled_when_the_thread_stops(compute: Compute) -> None:
    """And what was cancelled before its turn does not run."""
    held, began, ran = Event(), Event(), []

    def hold() -> None:
        began.set()
        assert held.wait(WITHIN_S)

    first = compute.submit(hold, "a")
    assert await asyncio.get_running_loop().run_in_executor(None, began.wait, WITHIN_S)
    given_up, behind, late = (compute.submit(lambda: ran.append(1), "a") for _ in range(3))
    given_up.cancel()
    held.set()
    await asyncio.wait_for(asyncio.gather(first, behind, late), WITHIN_S)
    assert len(ran) == 2 and compute.queue.idle
    held.clear()
    began.clear()
    first = compute.submit(hold, "a")
    assert await asyncio.get_running_loop().run_in_executor(None, began.wait, WITHIN_S)
    left = [compute.submit(lambda: ran.append(1), tenant) for tenant in ("a", "b")]
    compute.stop()
    held.set()
    assert all(isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*left, return_exceptions=True))
    await asyncio.wait_for(first, WITHIN_S)
    assert len(ran) == 2


class LetsGoSlowly:
    """Gives one item, and takes its time to be freed, which is still the thread's time."""

    def __iter__(self) -> LetsGoSlowly:
        return self

    def __next__(self) -> int:
        raise StopIteration(7)

    def __del__(self) -> None:
        sleep(0.05)


async def test_who_has_read_a_stream_finds_the_thread_idle(compute: Compute) -> None:
    """A stream ends with its work, so that nobody takes the end of his own work for somebody else's."""
    assert [item async for item in compute.lane().stream(cast(Any, LetsGoSlowly))] == [7]
    assert compute.queue.idle


def test_a_loop_that_has_ended_is_told_nothing() -> None:
    """A call is made on a loop that runs; afterwards it is left out, and whoever says it learns nothing of it."""
    said: list[int] = []

    async def live() -> asyncio.AbstractEventLoop:
        await asyncio.to_thread(tell, asyncio.get_running_loop(), said.append, 1)
        await asyncio.sleep(0)
        return asyncio.get_running_loop()

    tell(asyncio.run(live()), said.append, 2)
    assert said == [1]
