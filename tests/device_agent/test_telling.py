"""What is said from threads to event loops."""

from __future__ import annotations

import asyncio

from device_agent.sharing.telling import tell


def test_a_loop_that_has_ended_is_told_nothing() -> None:
    """A call is made on a loop that runs; afterwards it is left out, and whoever says it learns nothing of it."""
    said: list[int] = []

    async def live() -> asyncio.AbstractEventLoop:
        await asyncio.to_thread(tell, asyncio.get_running_loop(), said.append, 1)
        await asyncio.sleep(0)
        return asyncio.get_running_loop()

    tell(asyncio.run(live()), said.append, 2)
    assert said == [1]
