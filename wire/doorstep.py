"""Where websockets stand that have been accepted and have not said their hello."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.websockets import WebSocket

from wire.connection import Role
from wire.crowd import Crowd, party_of
from wire.errors import Code, ConnectionFailed
from wire.limits import HELLO_WITHIN_S, LinkLimits
from wire.messages import AnyMessage
from wire.stream import Stream, accept

MAX_GREETING: Final = 64
"""Websockets that have not said hello yet: a hello follows within a round trip, so that few are ever here."""

MAX_GREETING_OF_ADDRESS: Final = 32
"""Of those, from one address: many devices may stand behind it, and silent sockets fill no more than this."""


class Doorstep:
    """A server's own. Who says nothing goes first when others come, so nobody is turned away."""

    def __init__(self, role: Role, limits: LinkLimits) -> None:
        self._role = role
        self._limits = limits
        self._crowd: Crowd[Stream] = Crowd(MAX_GREETING, MAX_GREETING_OF_ADDRESS, HELLO_WITHIN_S)

    def __len__(self) -> int:
        return len(self._crowd)

    @asynccontextmanager
    async def greeted(self, websocket: WebSocket) -> AsyncIterator[tuple[Stream, AnyMessage]]:
        """Accept a websocket, see ``wire.stream.accept``, and hear its hello.

        Raises:
            ConnectionFailed: it says none in time, or something else, or its place was needed before it did.
        """
        address = websocket.client.host if websocket.client is not None else ""
        async with accept(websocket, self._role, self._limits) as stream:
            now = asyncio.get_running_loop().time()
            for silent in self._crowd.enter(stream, party_of(address), now) or ():
                silent.fail(ConnectionFailed(Code.TIMEOUT, "no hello before others needed the place"))
            try:
                hello = (await stream.receive()).message
            finally:
                self._crowd.leave(stream)
            yield stream, hello
