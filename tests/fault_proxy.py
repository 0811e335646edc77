"""A bad network for tests: stands between two sides of a websocket and loses, doubles, swaps, cuts and delays messages.

    async with FaultProxy("ws://127.0.0.1:8001", Faults(rate=0.05, most=3), seed=7) as proxy:
        ...  # dial proxy.url instead

What happens to the nth message of a way of the mth connection depends on the seed alone. ``cut``, ``freeze`` and
``thaw`` do on call what chance does otherwise.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter, deque
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from wire.limits import MAX_FRAME_BYTES

KINDS = ("replay", "duplicate", "reorder", "truncate", "drop", "delay", "cut", "half_open", "freeze")
"""An earlier message again, this one twice, this one after the next, without its end, not at all, late; the connection
ended without a word on both sides, or on one of them and for a while not on the other; nothing forwarded this way for
a while."""

REMEMBERED = 16
"""Messages of each way that may be replayed."""

NEXT_WITHIN_S = 0.05
"""How long a message waits to be swapped with the next; a side that awaits its answer sends none."""

DIAL_WITHIN_S = 5.0

REASON_BYTES = 120

HELD_BYTES = 32 * 2**10
"""What a throttled network takes in before it has delivered it, roughly."""

_WEBSOCKET: dict[str, Any] = {
    "compression": None,
    "max_size": MAX_FRAME_BYTES,
    "max_queue": 1,  # What waits, waits with the sides: a network holds little.
    "ping_interval": None,  # Whether a side is alive is for the two sides to find out.
    "close_timeout": 1.0,
}


@dataclass(frozen=True)
class Faults:
    """What the network does by itself.

    Attributes:
        rate: how likely each message meets a fault.
        most: faults in the life of the proxy; after them it only forwards.
        kinds: those that happen, all equally likely.
        delay_s: the longest delay of a message.
        freeze_s: how long a way stays frozen, or a connection half open.
        bytes_s: bandwidth of each way of each connection in bytes a second; 0 is unlimited.
    """

    rate: float = 0.0
    most: int = 2**31
    kinds: tuple[str, ...] = KINDS
    delay_s: float = 0.01
    freeze_s: float = 0.3
    bytes_s: float = 0.0


class FaultProxy:
    """Forwards websockets on a free port of this machine to ``target``; an async context manager.

    Args:
        kept: where every message to ``target`` is put, as it came.

    Attributes:
        url: what to dial instead of ``target``.
        happened: how often each kind of fault has happened.
        connections: dialled so far.
    """

    def __init__(
        self, target: str, faults: Faults | None = None, seed: int = 0, kept: list[bytes] | None = None
    ) -> None:
        self.url = ""
        self.happened: Counter[str] = Counter()
        self.connections = 0
        self._target = target.rstrip("/")
        self._faults = faults or Faults()
        self._seed = seed
        self._kept = kept
        self._open: set[Connection] = set()
        self._half_open: set[Connection] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> FaultProxy:
        server = await self._stack.enter_async_context(serve(self._serve, "127.0.0.1", 0, **_WEBSOCKET))
        self.url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self.cut()
        for pump in self._pumps:
            pump.cancel()
        await self._stack.aclose()

    def cut(self) -> None:
        """End every connection on both sides as a cable that is pulled out: no close frame, nothing more delivered."""
        for connection in list(self._open):
            connection.transport.abort()

    def freeze(self) -> None:
        """Forward nothing either way until ``thaw``; the connections stay. Those that are dialled meanwhile are taken
        and stand still too: nobody comes back before ``thaw``; with ``FreezingProxy`` one does."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Forward again, beginning with what has come meanwhile."""
        self._flowing.set()

    async def _serve(self, near: ServerConnection) -> None:
        self.connections += 1
        number = self.connections
        assert near.request is not None
        try:
            far = await connect(self._target + near.request.path, proxy=None, open_timeout=DIAL_WITHIN_S, **_WEBSOCKET)
        except (OSError, InvalidHandshake):
            near.transport.abort()
            return
        both: set[Connection] = {near, far}
        if self._faults.bytes_s:  # A slow network does not take in megabytes at once, as loopback would.
            for side in both:
                side.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, HELD_BYTES)
        self._open |= both
        ways = [
            asyncio.create_task(self._pump(near, far, random.Random(f"{self._seed}/{number}/up"))),
            asyncio.create_task(self._pump(far, near, random.Random(f"{self._seed}/{number}/down"))),
        ]
        self._pumps.update(ways)
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if self._half_open & both:
                await asyncio.sleep(self._faults.freeze_s)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._pumps.difference_update(ways)
            await _end(near, far)
            self._open -= both
            self._half_open -= both

    async def _pump(self, source: Connection, sink: Connection, rng: random.Random) -> None:
        """Forward one way of one connection until either side ends."""
        before: deque[bytes] = deque(maxlen=REMEMBERED)
        with suppress(ConnectionClosed):
            while True:
                message = await source.recv(decode=False)
                if self._kept is not None and isinstance(source, ServerConnection):
                    self._kept.append(message)
                kind = self._choose(rng, bool(before))
                for each in await self._suffered(kind, message, source, sink, before, rng):
                    await self._flowing.wait()
                    if self._faults.bytes_s:
                        await asyncio.sleep(len(each) / self._faults.bytes_s)
                    await sink.send(each)
                before.append(message)

    def _choose(self, rng: random.Random, has_before: bool) -> str:
        """The fault of the next message, "" for none."""
        faults = self._faults
        # Drawn for every message, so that those of one way do not depend on what happened on the other.
        chance, kind = rng.random(), rng.choice(faults.kinds)
        if chance >= faults.rate or self.happened.total() >= faults.most or (kind == "replay" and not has_before):
            return ""
        self.happened[kind] += 1
        return kind

    async def _suffered(
        self,
        kind: str,
        message: bytes,
        source: Connection,
        sink: Connection,
        before: deque[bytes],
        rng: random.Random,
    ) -> list[bytes]:
        """What is sent on where ``message`` came and meets a fault."""
        if kind == "replay":
            return [message, rng.choice(before)]
        if kind == "duplicate":
            return [message, message]
        if kind == "reorder":
            with suppress(TimeoutError, asyncio.TimeoutError):
                return [await asyncio.wait_for(source.recv(decode=False), NEXT_WITHIN_S), message]
        elif kind == "truncate":
            return [message[: rng.randrange(len(message))]]
        elif kind == "drop":
            return []
        elif kind == "delay":
            await asyncio.sleep(rng.random() * self._faults.delay_s)
        elif kind == "freeze":
            await asyncio.sleep(self._faults.freeze_s)
        elif kind == "cut":
            source.transport.abort()
            sink.transport.abort()
        elif kind == "half_open":
            lost = rng.choice((source, sink))
            self._half_open.add(lost)
            lost.transport.abort()
        return [message]


async def _end(near: Connection, far: Connection) -> None:
    """Close each side as the other was closed."""
    codes = [(near.close_code, near.close_reason), (far.close_code, far.close_reason)]
    for connection, (code, reason) in ((far, codes[0]), (near, codes[1])):
        if code is None or connection.close_code is not None:
            continue
        if code in (1005, 1006, 1015):  # Nothing was said: nothing is said here.
            connection.transport.abort()
        else:
            await connection.close(code, (reason or "").encode()[:REASON_BYTES].decode(errors="ignore"))
    for connection in (near, far):
        connection.transport.abort()
        await connection.wait_closed()
