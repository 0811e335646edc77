"""The two kinds of websocket, one we dialled and one we accepted, behind the same three calls."""

from __future__ import annotations

import socket
from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed, WebSocketException

from wire.limits import UNSENT_BYTES


class TransportClosed(Exception):
    """The socket is closed, by either side."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Transport(Protocol):
    """Whole binary messages in and out. Every call may raise ``TransportClosed``."""

    async def send(self, data: bytearray) -> None: ...

    async def receive(self) -> bytes: ...

    async def close(self, code: int, reason: str) -> None: ...


class LibraryTransport:
    """A websocket of the ``websockets`` library, whichever side has dialled."""

    def __init__(self, websocket: Connection) -> None:
        self._websocket = websocket
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            own: socket.socket = websocket.transport.get_extra_info("socket")
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)

    async def send(self, data: bytearray) -> None:
        try:
            await self._websocket.send(data)
        except ConnectionClosed as closed:
            raise TransportClosed(_reason(closed.rcvd)) from None
        except WebSocketException as error:
            raise TransportClosed(type(error).__name__) from error

    async def receive(self) -> bytes:
        try:
            # A text message has no place here: as bytes it fails to decode, and the peer is told so.
            data = await self._websocket.recv(decode=False)
        except ConnectionClosed as closed:
            raise TransportClosed(_reason(closed.rcvd)) from None
        return data

    async def close(self, code: int, reason: str) -> None:
        try:
            await self._websocket.close(_sendable(code), reason)
        except WebSocketException as error:
            raise TransportClosed(type(error).__name__) from error
        finally:
            # After a handshake that succeeded this is nothing; without it a peer that never reads keeps the socket.
            self._websocket.transport.abort()


class AcceptedTransport:
    """A websocket of the ASGI server."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def send(self, data: bytearray) -> None:
        try:
            await self._websocket.send({"type": "websocket.send", "bytes": data})
        except (WebSocketDisconnect, RuntimeError):  # Starlette raises RuntimeError after its own close.
            raise TransportClosed("the peer has closed the connection") from None

    async def receive(self) -> bytes:
        try:
            message = await self._websocket.receive()
        except (WebSocketDisconnect, RuntimeError):
            raise TransportClosed("the connection is closed") from None
        if message["type"] == "websocket.disconnect":
            raise TransportClosed(f"the peer has closed the connection (code {message.get('code')})")
        data = message.get("bytes")
        return data if data is not None else str(message.get("text", "")).encode("utf-8", "replace")

    async def close(self, code: int, reason: str) -> None:
        if self._websocket.application_state is WebSocketState.CONNECTED:
            try:
                await self._websocket.close(_sendable(code), reason)
            except (WebSocketDisconnect, RuntimeError):
                raise TransportClosed("the connection is closed") from None


def _reason(received: object) -> str:
    code = getattr(received, "code", None)
    reason = getattr(received, "reason", "")
    if code is None:
        return "the connection broke off"
    return f"the peer has closed the connection (code {code}{': ' + reason if reason else ''})"


def _sendable(code: int) -> int:
    # 1006 is what a missing close frame is called; it must not be sent.
    return 1001 if code == 1006 else code
