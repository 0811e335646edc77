"""What is kept of responses: the same bounds in memory and in redis, for each tenant; and a redis that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis_here import RedisServer

from gateway.errors import RequestError
from gateway.registry import line
from gateway.registry.line import RedisLine
from gateway.registry.names import RESPONSES
from gateway.registry.seal import SEAL_BYTES
from gateway.responses import kept_in_redis
from gateway.responses.kept import MOST_BYTES, Bounds, MemoryResponses, Responses
from gateway.responses.kept_in_redis import RedisResponses

TOKEN = "what-gateways-share"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine too."""
    monkeypatch.setattr(line, "ANSWER_WITHIN_S", 30.0)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@asynccontextmanager
async def opened(where: str, server: RedisServer | None, bounds: Bounds) -> AsyncIterator[Responses]:
    """A store with these bounds."""
    if server is None:
        yield MemoryResponses(bounds)
        return
    server.client.flushall()
    lane = RedisLine(server.url)
    await lane.open()
    try:
        yield RedisResponses(lane, TOKEN, bounds)
    finally:
        await lane.close()


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> Any:
    """``async with store(bounds) as kept``; in redis the seal of each counts with its bytes."""
    server = request.getfixturevalue("server") if request.param == "redis" else None
    return lambda bounds: opened(request.param, server, bounds)


async def known(store: Responses, tenant: str, ids: str) -> str:
    """Those of these ids that are kept."""
    return "".join([id for id in ids if await store.get(tenant, id) is not None])


async def test_a_response_is_its_tenants(store: Any) -> None:
    """It is read and deleted by the tenant it belongs to alone, put twice it is there once."""
    async with store(Bounds()) as kept:
        for tenant in ("", "t"):
            assert await kept.put(tenant, "a", b"first") and await kept.put(tenant, "a", tenant.encode() + b"!")
        assert (await kept.get("", "a"), await kept.get("t", "a")) == (b"!", b"t!")
        assert await kept.get("other", "a") is None and not await kept.delete("other", "a")
        assert await kept.delete("t", "a") and not await kept.delete("t", "a")
        assert await known(kept, "t", "a") == "" and await known(kept, "", "a") == "a"
        assert not await kept.put("t", "b", b"x" * (MOST_BYTES + 1)) and await kept.get("t", "b") is None


async def test_a_tenants_oldest_go_first(store: Any) -> None:
    """Where there are too many, or too many bytes; another tenant's stay."""
    async with store(Bounds(responses=3)) as kept:
        await kept.put("other", "a", b"x")
        for id in "abcde":
            await kept.put("t", id, b"x")
        assert await known(kept, "t", "abcde") == "cde" and await known(kept, "other", "a") == "a"
    async with store(Bounds(tenant_bytes=1000)) as kept:
        for id in "abcd":
            await kept.put("t", id, b"x" * 300)
        assert await known(kept, "t", "abcd") == "bcd"
        await kept.put("t", "e", b"x" * 900)
        assert await known(kept, "t", "abcde") == "e"


async def test_who_has_most_gives_way(store: Any) -> None:
    """Where all together have too much."""
    async with store(Bounds(all_bytes=2000)) as kept:
        await kept.put("small", "a", b"x" * 300)
        for id in "abcd":
            await kept.put("large", id, b"x" * 450)
        assert await known(kept, "small", "a") == "a" and await known(kept, "large", "abcd") == "bcd"
        await kept.put("new", "a", b"x" * 300)
        assert await known(kept, "small", "a") == "a" and await known(kept, "large", "abcd") in ("bcd", "cd")


async def test_what_is_too_old_is_gone(server: RedisServer) -> None:
    """In memory by the clock that is handed in, in redis by redis' own, where nothing of it stays."""
    now = [0.0]
    kept = MemoryResponses(Bounds(age_s=10), lambda: now[0])
    await kept.put("t", "a", b"x")
    now[0] = 5.0
    await kept.put("t", "b", b"x")
    now[0] = 10.0
    assert await known(kept, "t", "ab") == "b" and not await kept.delete("t", "a")
    async with opened("redis", server, Bounds(age_s=1)) as stored:
        await stored.put("t", "a", b"x")
        for _ in range(300):
            if not await known(stored, "t", "a"):
                break
            await asyncio.sleep(0.1)
        assert not await stored.delete("t", "a")
        await stored.put("t", "b", b"x")
        assert server.client.hlen(RESPONSES) <= 1
        assert server.client.get(f"{RESPONSES}:total") in (None, str(SEAL_BYTES + 1).encode())


async def test_what_strangers_write_is_no_response(server: RedisServer) -> None:
    """Nor one that is put in another's place."""
    async with opened("redis", server, Bounds()) as kept:
        await kept.put("t", "a", b"x")
        await kept.put("u", "a", b"y")
        server.client.hset(RESPONSES, "t/a", server.client.hget(RESPONSES, "u/a"))
        server.client.hset(RESPONSES, "u/a", b"z" * (SEAL_BYTES + 1))
        assert await kept.get("t", "a") is None and await kept.get("u", "a") is None


async def test_a_tenant_takes_some_of_the_room_at_redis(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits there counts until it was answered, also of who has hung up; others are served all the same."""
    monkeypatch.setattr(kept_in_redis, "MOST_OF_TENANT", 3)
    async with opened("redis", server, Bounds()) as kept:
        assert await kept.put("t", "a", b"x") and await kept.put("other", "a", b"y")
        server.client.client_pause(60_000, all=False)  # No script is run.
        waiting = [asyncio.ensure_future(kept.get("t", "a")) for _ in range(3)]
        await asyncio.sleep(0)
        gone = waiting.pop()
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        for ask in (kept.get, kept.delete):
            with pytest.raises(RequestError) as error:
                await ask("t", "a")
            assert (error.value.status, error.value.code) == (429, "rate_limit_exceeded")
        assert not await kept.put("t", "b", b"x")
        other = asyncio.ensure_future(kept.get("other", "a"))
        await asyncio.sleep(0)
        server.client.client_unpause()
        assert await asyncio.gather(*waiting, other) == [b"x", b"x", b"y"]
        assert await kept.get("t", "a") == b"x" and await kept.put("t", "b", b"x")


async def test_without_redis_nothing_is_stored(server: RedisServer) -> None:
    """Putting says so, reading is an error that tells what to do instead."""
    kept = RedisResponses(RedisLine(server.url), TOKEN)  # Never opened.
    assert not await kept.put("t", "a", b"x")
    for ask in (kept.get, kept.delete):
        with pytest.raises(RequestError, match="send the whole conversation") as error:
            await ask("t", "a")
        assert (error.value.status, error.value.code) == (503, "store_unavailable")
