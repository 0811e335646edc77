"""The device's one compute thread: in order, and idle work makes way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from threading import Event

import pytest

from device_agent.local import Compute

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
    assert done == list(range(20)) and compute.idle


async def test_idle_work_ends_by_itself(compute: Compute) -> None:
    """After so many steps, when a step says that nothing is left, and at once where it is enough already."""
    steps = 0

    def step(more: bool = True) -> bool:
        nonlocal steps
        steps += 1
        return more

    await asyncio.wait_for(compute.submit_while_idle(step, 7, lambda: False), WITHIN_S)
    assert steps == 7
    await asyncio.wait_for(compute.submit_while_idle(lambda: step(False), 7, lambda: False), WITHIN_S)
    assert steps == 8
    await asyncio.wait_for(compute.submit_while_idle(step, 7, lambda: True), WITHIN_S)
    assert steps == 8
    await asyncio.wait_for(compute.submit_while_idle(step, 7, lambda: steps > 10), WITHIN_S)
    assert steps == 11


async def test_idle_work_makes_way(compute: Compute) -> None:
    """What is submitted meanwhile waits for one step at most, though there would be work for hours."""
    began = Event()

    def step() -> bool:
        began.set()
        return True

    idle = compute.submit_while_idle(step, LONG, lambda: False)
    assert await asyncio.get_running_loop().run_in_executor(None, began.wait, WITHIN_S)
    assert await asyncio.wait_for(compute.submit(lambda: 5), WITHIN_S) == 5
    await asyncio.wait_for(idle, WITHIN_S)


async def test_idle_work_ends_with_the_thread(compute: Compute) -> None:
    """A device that stops does not wait for it."""
    began = Event()

    def step() -> bool:
        began.set()
        return True

    idle = compute.submit_while_idle(step, LONG, lambda: False)
    assert await asyncio.get_running_loop().run_in_executor(None, began.wait, WITHIN_S)
    compute.stop()
    await asyncio.wait_for(idle, WITHIN_S)


async def test_a_step_that_fails_is_heard_of(compute: Compute) -> None:
    """By whoever waits for the idle work; the thread goes on."""

    def broken() -> bool:
        raise ValueError("a step")

    with pytest.raises(ValueError, match="a step"):
        await asyncio.wait_for(compute.submit_while_idle(broken, 3, lambda: False), WITHIN_S)
    assert await asyncio.wait_for(compute.submit(lambda: 5), WITHIN_S) == 5
