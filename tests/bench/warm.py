"""An engine that is to be measured has warmed up: until then it admits nobody."""

from __future__ import annotations

import asyncio

from cloud_server.engine.engine import Engine


async def warmed_up(engine: Engine, running: asyncio.Task[None]) -> None:
    """Wait until ``engine``, which runs as the task ``running``, admits sessions, or has ended."""
    while not engine.alive and not running.done():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
