"""Waiting for an event for a while."""

from __future__ import annotations

import asyncio

import pytest

from device_agent.sharing.events import set_within


async def test_an_event_that_comes_and_one_that_does_not() -> None:
    """True at once where it is set, or once it is; False when the time is over."""
    event = asyncio.Event()
    assert not await set_within(event, 0.01)
    asyncio.get_running_loop().call_soon(event.set)
    assert await set_within(event, 60)
    assert await set_within(event, 0.0)


async def test_a_cancellation_together_with_the_event_counts() -> None:
    """Whoever is cancelled in the moment in which the event comes ends."""
    event = asyncio.Event()
    waiting = asyncio.create_task(set_within(event, 60))
    for _ in range(3):
        await asyncio.sleep(0)
    event.set()
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
