"""Threads that read prompts: one tenant's long texts never hold all of them, and what nobody waits for is not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from threading import Event

import pytest

from device_agent.sharing.compute import FairThreads

WITHIN_S = 10.0


@pytest.fixture
async def readers() -> AsyncIterator[FairThreads]:
    """Two threads, stopped afterwards."""
    made = FairThreads(2, "prompt")
    yield made
    made.stop()


class Long:
    """A work that runs until it is told to end."""

    def __init__(self) -> None:
        self.began, self.end = Event(), Event()

    def __call__(self) -> None:
        self.began.set()
        assert self.end.wait(WITHIN_S)

    async def runs(self) -> None:
        """Wait until it does."""
        assert await asyncio.get_running_loop().run_in_executor(None, self.began.wait, WITHIN_S)


async def test_a_tenant_leaves_one_thread_to_others(readers: FairThreads) -> None:
    """While the long text of one is read and more of its wait, the small one of another is read at once; all of the
    first one's are read in the end."""
    long = [Long(), Long(), Long()]
    greedy = [readers.submit(each, "greedy") for each in long]
    await long[0].runs()
    assert await asyncio.wait_for(readers.submit(lambda: "read", "small"), WITHIN_S) == "read"
    assert not long[1].began.is_set()
    for each in long:
        each.end.set()
    await asyncio.wait_for(asyncio.gather(*greedy), WITHIN_S)
    assert readers.queue.idle


async def test_where_there_are_no_keys_all_threads_are_used(readers: FairThreads) -> None:
    """There is nobody to leave one for."""
    long = [Long(), Long()]
    both = [readers.submit(each, "") for each in long]
    for each in long:
        await each.runs()
        each.end.set()
    await asyncio.wait_for(asyncio.gather(*both), WITHIN_S)


async def test_what_nobody_waits_for_is_not_read(readers: FairThreads) -> None:
    """A request that is cancelled before its turn; and one that fails tells only who waits for it."""
    long, read = Long(), []
    first = readers.submit(long, "a")
    await long.runs()
    given_up, fails = readers.submit(lambda: read.append(1), "a"), readers.submit(lambda: 1 // len(read), "a")
    given_up.cancel()
    long.end.set()
    await asyncio.wait_for(first, WITHIN_S)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(fails, WITHIN_S)
    assert not read and await asyncio.wait_for(readers.submit(lambda: "on", "a"), WITHIN_S) == "on"
