"""Websockets of our servers, and peers that ping."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from clouds import until
from fastapi import FastAPI, WebSocket
from quick_server import QuickServer

from service.websockets import CLOSED_WITHIN_S, BoundedWebSocket

PING = b"\x89" + bytes([0x80 | 125]) + bytes(4) + b"x" * 125
"""Masked, as clients' are, with nought."""

MOST_KEPT = 2**20


@asynccontextmanager
async def served(serve: Callable[[WebSocket], Awaitable[None]]) -> AsyncIterator[tuple[QuickServer, Any, Any]]:
    """A server whose websockets are served so, and a client's reader and writer, behind the upgrade."""
    app = FastAPI()
    app.add_api_websocket_route("/", serve)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        config = uvicorn.Config(app, log_level="error", ws=BoundedWebSocket, ws_per_message_deflate=False)
        server = QuickServer(config)
        task = asyncio.create_task(server._serve([listener]))
        await until(lambda: server.started)
        # Little is read ahead here, so that the server's answers stay with it.
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        key = base64.b64encode(os.urandom(16)).decode()
        head = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        writer.write(f"{head}Sec-WebSocket-Key: {key}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        try:
            yield server, reader, writer
        finally:
            writer.close()
            server.stop.set()
            await task


async def test_who_pings_and_reads_nothing_is_read_no_further() -> None:
    """However much it sends, what is kept for it is bounded; once it reads all is answered, and it is served."""

    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        while True:
            await websocket.send_bytes(await websocket.receive_bytes())

    async with served(echo) as (server, reader, writer):
        [serving] = server.server_state.connections
        writer.write(PING * 400_000)
        most = 0
        for _ in range(100):
            await asyncio.sleep(0.01)
            most = max(most, serving.transport.get_write_buffer_size())
        assert 0 < most < MOST_KEPT
        writer.write(b"\x82\x83" + bytes(4) + b"abc")
        answers = await asyncio.wait_for(reader.readexactly(127 * 400_000 + 5), 60)
        assert answers.endswith(b"\x82\x03abc")


async def test_who_does_not_hang_up_is_hung_up_on() -> None:
    """Soon behind the word that it is over."""

    async def refuse(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close(1008)

    async with served(refuse) as (_, reader, _):
        assert await asyncio.wait_for(reader.read(), 3 * CLOSED_WITHIN_S) == b"\x88\x02\x03\xf0"
