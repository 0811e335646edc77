"""API keys in redis: changes are heard of, or are none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from redis_here import RedisServer

from gateway.key_book import KeyRecord
from gateway.key_stores import BadKeyStore
from gateway.registry import line as line_module
from gateway.registry import redis as beating
from gateway.registry.line import RedisLine
from gateway.registry.redis import RedisRegistry
from gateway.registry.redis_keys import RedisKeys, records_in

TOKEN = "what-gateways-share"
SOON_S = 30.0
ALICE, BOB = KeyRecord("alice", "0" * 64), KeyRecord("bob", "1" * 64)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


def test_a_key_goes_where_gateways_are_told_so(server: RedisServer) -> None:
    """Where redis does not count the change, as one that dies in between, the key is there still, to be revoked."""
    keys = RedisKeys(server.url, TOKEN)
    assert keys.add(ALICE) and not keys.add(ALICE)
    server.client.execute_command("ACL", "SETUSER", "careless", "on", "nopass", "~*", "+@all", "-incrby")
    with pytest.raises(BadKeyStore):
        RedisKeys(server.url.replace("unix://", "unix://careless:any@"), TOKEN).revoke("alice")
    assert keys.read() == [ALICE]
    assert keys.revoke("alice") and not keys.revoke("alice")


async def test_keys_made_anew_count_where_redis_has_lost_those_before(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those known go on until then; that as many changes are counted again as before is nothing."""
    monkeypatch.setattr(line_module, "ANSWER_WITHIN_S", SOON_S)
    monkeypatch.setattr(beating, "BEAT_S", 0.15)
    heard: list[list[KeyRecord]] = []
    registry = RedisRegistry(
        RedisLine(server.url),
        "a",
        "http://a",
        TOKEN,
        lambda: (0, False),
        lambda new: heard.append(records_in(new, TOKEN)),
    )
    RedisKeys(server.url, TOKEN).add(ALICE)
    await registry.open()
    try:
        await _until(heard, [[ALICE]])
        server.client.flushall()
        beats, end = registry.beats, asyncio.get_running_loop().time() + SOON_S
        while registry.beats < beats + 3:
            assert asyncio.get_running_loop().time() < end
            await asyncio.sleep(0.01)
        assert heard == [[ALICE]]
        RedisKeys(server.url, TOKEN).add(BOB)
        await _until(heard, [[ALICE], [BOB]])
    finally:
        await registry.close()


async def _until(heard: list[list[KeyRecord]], wanted: list[list[KeyRecord]]) -> None:
    end = asyncio.get_running_loop().time() + SOON_S
    while heard != wanted:
        assert asyncio.get_running_loop().time() < end, heard
        await asyncio.sleep(0.01)
