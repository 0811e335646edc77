"""The names in a Host header that a cloud server answers to, over real sockets."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from clouds import cloud_here
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus


async def test_a_foreign_host_is_answered_at_no_door(tiny: Path) -> None:
    """A page that has renamed its server to 127.0.0.1 reads no state, drains nothing and opens no websocket; loopback's
    own names are answered, and one that was told."""
    async with (
        cloud_here(tiny, 1, allowed_hosts="cloud.example") as cloud,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        http = cloud.url.replace("ws", "http", 1)
        for path, method in (("/state", "GET"), ("/metrics", "GET"), ("/drain", "POST"), ("/health", "GET")):
            answer = await client.request(method, http + path, headers={"Host": "evil.example:8001"})
            assert answer.status_code == 403 and "allowed-hosts" in answer.text
        assert not cloud.server.engine.ledger.draining
        for host in ("localhost:8001", "127.0.0.1", "[::1]:8001", "CLOUD.example:8001"):
            assert (await client.get(http + "/state", headers={"Host": host})).status_code == 200
        port = cloud.url.rpartition(":")[2]
        with pytest.raises(InvalidStatus):
            async with connect(f"ws://evil.example:{port}/device", host="127.0.0.1", port=int(port), proxy=None):
                pass
        async with connect(f"ws://localhost:{port}/device", host="127.0.0.1", port=int(port), proxy=None):
            pass


async def test_beyond_loopback_any_host_is_answered_until_some_are_told(tiny: Path) -> None:
    """A server that others reach does not know its own names."""
    for hosts, status in (("", 200), ("cloud.example", 403)):
        beyond = cloud_here(tiny, 1, host="0.0.0.0", cloud_token="c", operator_token="s", allowed_hosts=hosts)
        async with beyond as cloud, httpx.AsyncClient(trust_env=False) as client:
            url = cloud.url.replace("ws", "http", 1) + "/state"
            headers = {"Host": "any.example", "Authorization": "Bearer s"}
            assert (await client.get(url, headers=headers)).status_code == status
