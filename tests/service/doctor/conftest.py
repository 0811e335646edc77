"""Servers that answer HTTP as they are told, and a real gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from typing import Any

import pytest
import uvicorn
from quick_server import QuickServer, eventually

from gateway.app import create_app
from gateway.config import GatewayConfig
from service.lifecycle import listening


@asynccontextmanager
async def _answering(bodies: dict[str, bytes], *, ahead_s: float = 0.0, status: str = "200 OK") -> AsyncIterator[int]:
    """What answers paths with these bodies, others with 404, its clock so far ahead; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        body, line = (bodies[path], status) if path in bodies else (b"nothing", "404 Not Found")
        date = formatdate(time.time() + ahead_s, usegmt=True)
        head = f"HTTP/1.1 {line}\r\nDate: {date}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def _gateway(**settings: Any) -> AsyncIterator[int]:
    """A real gateway in this event loop; its port."""
    listener = listening("127.0.0.1", 0)
    app = create_app(GatewayConfig(**settings))
    server = QuickServer(uvicorn.Config(app, log_config=None, access_log=False, ws="websockets-sansio"))
    task = asyncio.create_task(server._serve([listener]))
    await eventually(lambda: server.started)
    try:
        yield listener.getsockname()[1]
    finally:
        server.stop.set()
        await task
        listener.close()


@pytest.fixture
def answering() -> Any:
    """``async with answering({"/health": b"…"}, ahead_s=3600) as port``."""
    return _answering


@pytest.fixture
def gateway() -> Any:
    """``async with gateway(api_keys="…") as port``."""
    return _gateway
