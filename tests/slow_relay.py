"""A link that carries so many bytes a second each way, between a client and a server of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

AT_ONCE = 4096
"""Bytes that go together: little beside what is measured."""


@asynccontextmanager
async def slow_relay(target: int, bytes_s: float) -> AsyncIterator[int]:
    """In front of the server on port ``target``; its own port."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        far, to_far = await asyncio.open_connection("127.0.0.1", target, limit=AT_ONCE)
        ways = [asyncio.create_task(_carry(*way, bytes_s)) for way in ((near, to_far), (far, to_near))]
        tasks.update(ways)
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for writer in (to_near, to_far):
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=AT_ONCE)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter, bytes_s: float) -> None:
    clock = asyncio.get_running_loop().time
    free_at = 0.0
    with suppress(OSError):
        while data := await source.read(AT_ONCE):
            free_at = max(free_at, clock()) + len(data) / bytes_s
            await asyncio.sleep(free_at - clock())
            sink.write(data)
            await sink.drain()
