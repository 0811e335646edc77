"""The registry of several gateways: each says in redis what agents it has, and hears what the others have.

A gateway *beats* about once a second, and sooner where something has changed: one round trip in which it says what it
has, for some seconds, and hears all others. Between beats, and where redis is gone, what was heard last holds. Who is
asked for an agent does not wait for redis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import msgspec
import structlog
from msgspec.structs import replace

from gateway.registry.line import RedisLine, ended
from gateway.registry.memory import MemoryRegistry
from gateway.registry.names import GATEWAY, GATEWAYS, KEYS, KEYS_VERSION
from gateway.registry.registry import AgentRecord, Peer
from gateway.registry.seal import opened, sealed

BEAT_S: Final = 1.0
LEAST_GAP_S: Final = 0.1
"""Between two beats, however much changes."""

ALIVE_S: Final = 5
"""For so long a gateway counts that does not beat."""

LOST: Final = b"lost"
"""In place of the keys' version; redis has numbers."""

MOST_GATEWAYS: Final = 64
MOST_SAID_BYTES: Final = 4 * 2**20

BEAT: Final = """
local me, prefix, said, alive = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local now = tonumber(redis.call('TIME')[1])
redis.call('SET', prefix .. me, said, 'EX', alive)
redis.call('ZADD', KEYS[1], now, me)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 2 * alive)
local heard = {}
for _, id in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, tonumber(ARGV[5]) - 1)) do
  heard[#heard + 1] = id
  heard[#heard + 1] = redis.call('GET', prefix .. id) or ''
end
return {redis.call('GET', KEYS[2]) or '', heard}
"""

LEAVE: Final = "redis.call('DEL', KEYS[2]) redis.call('ZREM', KEYS[1], ARGV[1])"

log = structlog.get_logger()


class Said(msgspec.Struct, frozen=True):
    """What a gateway says of itself."""

    url: str
    agents: list[AgentRecord]
    waiting: int = 0
    draining: bool = False


class RedisRegistry(MemoryRegistry):
    """The ``Registry`` of one gateway among several.

    Args:
        id: this gateway's.
        token: what all gateways share.
        state: how many requests wait here, and whether this gateway drains.
        new_keys: called with the stored API keys, sealed, when they are others than before.

    Attributes:
        peers: the other gateways.
        beats: how often this one has heard from redis.
    """

    def __init__(
        self,
        line: RedisLine,
        id: str,
        url: str,
        token: str,
        state: Callable[[], tuple[int, bool]],
        new_keys: Callable[[list[Any]], None],
    ) -> None:
        super().__init__()
        self.peers: tuple[Peer, ...] = ()
        self.beats = 0
        self._line = line
        self._id = id
        self._url = url
        self._token = token
        self._state = state
        self._new_keys = new_keys
        self._keys_version: Any = None
        self._heard: dict[bytes, tuple[bytes, Peer]] = {}
        self._changed = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._line.open()
        await self._beat()
        self._beating = asyncio.create_task(self._beat_on())

    async def close(self) -> None:
        await ended(self._beating)
        await self._line.ask("EVAL", LEAVE, 2, GATEWAYS, GATEWAY + self._id, self._id)
        await self._line.close()
        self.peers = ()
        await super().close()

    def publish(self, record: AgentRecord) -> None:
        super().publish(record)
        self.hurry()

    def withdraw(self, key: str) -> None:
        super().withdraw(key)
        self.hurry()

    def known(self) -> list[AgentRecord]:
        return super().known() + [agent for peer in self.peers for agent in peer.agents]

    def hurry(self) -> None:
        """Beat soon."""
        self._changed.set()

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(LEAST_GAP_S)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), BEAT_S - LEAST_GAP_S)
            self._changed.clear()
            await self._beat()

    async def _beat(self) -> None:
        waiting, draining = self._state()
        said = Said(self._url, super().known(), waiting, draining)
        data = sealed(self._token, _purpose(self._id), msgspec.msgpack.encode(said))
        numbers = (ALIVE_S, MOST_GATEWAYS)
        reply = await self._line.ask("EVAL", BEAT, 2, GATEWAYS, KEYS_VERSION, self._id, GATEWAY, data, *numbers)
        if reply is None:
            return
        try:
            version, heard = reply
            self.peers = tuple(self._peers(zip(heard[::2], heard[1::2], strict=True)))
        except (TypeError, ValueError, AttributeError):
            return
        self.beats += 1
        if version != self._keys_version:
            await self._learn_keys(version)

    async def _learn_keys(self, version: Any) -> None:
        if version == b"" and self._keys_version:  # Each change counts on: this redis has lost what it had.
            if self._keys_version != LOST:
                log.error("redis has lost its API keys: going on with those known; make them anew with trilby keys")
            self._keys_version = LOST  # Counted from the beginning, it may come to the number known here.
            return
        values = await self._line.ask("HVALS", KEYS)
        if isinstance(values, list):
            self._keys_version = version
            self._new_keys(values)

    def _peers(self, heard: Iterable[tuple[Any, Any]]) -> Iterable[Peer]:
        before, self._heard = self._heard, {}
        for id, data in heard:
            if id == self._id.encode():
                continue
            known = before.get(id)
            peer = known[1] if known is not None and known[0] == data else _peer(self._token, id, data)
            if peer is not None:
                self._heard[id] = data, peer
                yield peer


def _peer(token: str, id: bytes, data: Any) -> Peer | None:
    """What another gateway has said; None where it is none of ours."""
    name = id.decode("ascii", "replace")
    inside = opened(token, _purpose(name), data, MOST_SAID_BYTES)
    if inside is None:
        return None
    try:
        said = msgspec.msgpack.decode(inside, type=Said)
    except (msgspec.MsgspecError, ValueError):  # One of another version.
        return None
    agents = (replace(each, key=f"{name}/{each.key}", draining=each.draining or said.draining) for each in said.agents)
    return Peer(name, said.url, tuple(agents), said.waiting)


def _purpose(id: str) -> str:
    return f"gateway {id}"
