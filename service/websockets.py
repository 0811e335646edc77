"""uvicorn's websocket, bounded where uvicorn's own is not."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

CLOSED_WITHIN_S: Final = 2.0
"""A peer that has been told the end and has not hung up by then is hung up on: who is refused at the door costs a file
no longer. Else it is ten seconds."""


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """Reads no further from who pings and does not read the answers. Each ping is answered at once, whatever waits to
    be sent already: a stranger could have this process keep all that it ever sends it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has connected."""
        super().connection_made(transport)
        self.close_timeout = CLOSED_WITHIN_S

    def handle_ping(self) -> None:
        """Answer a ping; the next one once the answers are away."""
        super().handle_ping()
        if not self.writable.is_set():
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """What waited has left."""
        super().resume_writing()
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()
