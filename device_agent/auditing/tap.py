"""A place on the way between a device and its cloud from which all messages are seen, as they are."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from device_agent.auditing.transcript import Passed
from wire.dialled import CLOSE_WITHIN_S, dialled
from wire.errors import ConnectionFailed
from wire.limits import MESSAGE_BYTES

QUIET_S = 0.1
"""Once nothing has passed for so long, what belongs together is complete."""

QUIET_WITHIN_S = 10.0


class Tap:
    """Forwards websockets that are dialled at ``url`` to ``target``, and keeps what passes; an async context manager.

    Attributes:
        url: what to dial instead of ``target``.
        passed: every message so far.
        connections: dialled so far.
    """

    def __init__(self, target: str) -> None:
        self.url = ""
        self.passed: list[Passed] = []
        self.connections = 0
        self._target = target.rstrip("/")
        self._clock = asyncio.get_running_loop().time
        self._last_s = self._clock()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Tap:
        listening = serve(
            self._serve,
            "127.0.0.1",
            0,
            max_size=MESSAGE_BYTES,
            compression=None,
            ping_interval=None,
            close_timeout=CLOSE_WITHIN_S,
        )
        server = await self._stack.enter_async_context(listening)
        self.url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def quiet(self) -> None:
        """Wait until nothing passes any more, or for ``QUIET_WITHIN_S``."""
        until_s = self._clock() + QUIET_WITHIN_S
        while True:
            now = self._clock()
            left_s = min(self._last_s + QUIET_S, until_s) - now
            if left_s <= 0:
                return
            await asyncio.sleep(left_s)

    async def _serve(self, near: ServerConnection) -> None:
        self.connections += 1
        assert near.request is not None
        try:
            far = await dialled(self._target + near.request.path, None)
        except ConnectionFailed:
            near.transport.abort()
            return
        ways = [asyncio.create_task(self._pump(near, far, True)), asyncio.create_task(self._pump(far, near, False))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for side in (near, far):
                with suppress(OSError, TimeoutError):
                    await side.close()

    async def _pump(self, source: Connection, sink: Connection, up: bool) -> None:
        with suppress(ConnectionClosed):
            while True:
                data = await source.recv(decode=False)
                self._last_s = self._clock()
                self.passed.append(Passed(up, self._last_s, data))
                await sink.send(data)
