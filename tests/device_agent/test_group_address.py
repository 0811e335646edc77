"""Where a device that was told its group's name only finds the group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

import pytest

from device_agent import group_address as module
from device_agent.config import DeviceConfig
from device_agent.group_address import MAX_ANSWER_BYTES, group_address
from device_agent.mdns import NoMdns

Reply = Callable[[bytes], bytes]


def http(body: bytes, status: str = "200 OK") -> bytes:
    """A whole response."""
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status.encode(), len(body), body)


@asynccontextmanager
async def gateway(replies: list[bytes]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """What answers with these, the last one again and again: its URL, and what it was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(replies.pop(0) if len(replies) > 1 else replies[0])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()
        await server.wait_closed()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else is on the network, and it is asked again at once."""

    async def nobody(group: str, within_s: float, useless: Collection[str]) -> None:
        raise NoMdns("not installed")

    monkeypatch.setattr(module, "heard", nobody)
    monkeypatch.setattr(module, "ASK_EVERY_S", 0.01)


def config(url: str, join: str = "auto") -> DeviceConfig:
    """A device that looks for the group home."""
    return DeviceConfig("m", gateway=url, join=join, group_key="k" * 16, device_token="devices")


async def test_it_asks_until_its_gateway_knows() -> None:
    """With the device token; a gateway that is no gateway, that answers without end or with what is no address, only
    delays it."""
    known = b'{"groups": [{"name": "away", "address": "1.2.3.4:1"}, {"name": "home", "address": "10.0.0.1:8003"}]}'
    bad = [
        http(b"", "401 Unauthorized"),
        http(b"<html>"),
        http(b'{"groups": [{"name": "home"}]}'),
        http(b'{"groups": []}'),
        http(b'{"groups": [{"name": "home", "address": "somewhere"}]}'),
        http(b" " * (MAX_ANSWER_BYTES + 1)),
    ]
    async with gateway([*bad, http(known)]) as (url, asked):
        assert await asyncio.wait_for(group_address(config(url)), 20) == "10.0.0.1:8003"
        assert len(asked) == len(bad) + 1
        assert all(each.startswith(b"GET /groups ") and b"Bearer devices" in each for each in asked)
        assert all(b"kkkk" not in each for each in asked), "the group's key is nobody's business"


async def test_who_was_no_use_is_passed_over_where_another_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one gateway, of several, and of the network; what is no address hides none that is; where nobody knows
    another, it is tried once more."""

    async def somebody(group: str, within_s: float, useless: Collection[str] = ()) -> str:
        return "10.0.0.4:4"

    monkeypatch.setattr(module, "heard", somebody)
    two = http(b'{"groups": [{"name": "home", "address": "10.0.0.1:1"}, {"name": "home", "address": "10.0.0.2:2"}]}')
    bad = http(b'{"groups": [{"name": "home", "address": "10.0.0.3:3"}, {"name": "home", "address": "nowhere"}]}')
    async with gateway([two]) as (one, _), gateway([bad]) as (other, _):
        both, useless = config(f"{one},{other}"), list[str]()
        for number in (2, 1, 3, 4):
            assert await asyncio.wait_for(group_address(both, useless), 20) == f"10.0.0.{number}:{number}"
            useless.append(f"10.0.0.{number}:{number}")
        assert await asyncio.wait_for(group_address(both, useless), 20) in useless


async def test_the_network_is_asked_behind_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the gateway does not know, or is not there."""

    async def somebody(group: str, within_s: float, useless: Collection[str]) -> str:
        return f"{group}.example:1"

    monkeypatch.setattr(module, "heard", somebody)
    assert await group_address(config("ws://127.0.0.1:9")) == "home.example:1"
