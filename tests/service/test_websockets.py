"""Websockets of our servers, and peers that ping."""

from __future__ import annotations

import asyncio
import base64
import os
import socket

import uvicorn
from clouds import until
from fastapi import FastAPI, WebSocket
from quick_server import QuickServer

from service.websockets import BoundedWebSocket

PING = b"\x89" + bytes([0x80 | 125]) + bytes(4) + b"x" * 125
"""Masked, as clients' are, with nought."""

MOST_KEPT = 2**20


async def test_who_pings_and_reads_nothing_is_read_no_further() -> None:
    """However much it sends, what is kept for it is bounded; once it reads all is answered, and it is served."""
    app = FastAPI()

    @app.websocket("/echo")
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        while True:
            await websocket.send_bytes(await websocket.receive_bytes())

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        config = uvicorn.Config(app, log_level="error", ws=BoundedWebSocket, ws_per_message_deflate=False)
        server = QuickServer(config)
        task = asyncio.create_task(server._serve([listener]))
        await until(lambda: server.started)
        key = base64.b64encode(os.urandom(16)).decode()
        head = "GET /echo HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        # Nothing is read ahead here, so that the server's answers stay with it.
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
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
        writer.close()
        server.stop.set()
        await task
