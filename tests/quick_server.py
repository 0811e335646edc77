"""uvicorn for tests: it ends when it is told to, where uvicorn itself looks only every tenth of a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import uvicorn

SOON = 60.0
"""Seconds within which everything expected here happens, on a busy machine too."""


class QuickServer(uvicorn.Server):
    """A uvicorn server that stops when told, without polling."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stop = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.stop.wait()

    async def shutdown(self, sockets: Any = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await eventually(lambda: not self.server_state.connections and not self.server_state.tasks)
        await self.lifespan.shutdown()


async def eventually(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    end = asyncio.get_running_loop().time() + SOON
    while not holds():
        assert asyncio.get_running_loop().time() < end, "it did not come to hold"
        await asyncio.sleep(0.002)
