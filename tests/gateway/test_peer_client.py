"""Connections between gateways that speak TLS."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from certificates import shown

from gateway.config import GatewayConfig
from gateway.peer_client import PeerClient, PeerFailed
from gateway.registry.registry import Peer
from service.certs import Authority
from tls import contexts

FILES = ("here.crt", "here.key", "ca.crt")


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What a gateway says, as far as it matters here."""
    while await reader.readline() not in (b"\r\n", b""):
        pass
    writer.write(b"HTTP/1.1 429 No\r\ncontent-length: 0\r\n\r\n")
    await writer.drain()
    writer.close()


async def _asked(client: PeerClient, port: int, host: str = "127.0.0.1") -> int:
    peer = Peer("other", f"https://{host}:{port}", (), 0)
    async with client.asking(peer, "/v1/completions", b"", "id", "tenant") as reply:
        return reply.status_code


async def test_certificates_for_servers_are_enough_and_may_be_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gateways that have what `trilby certs --server` makes reach each other; who is trusted is looked up again, and
    the connections of before are not kept."""
    monkeypatch.setattr(contexts, "LOOK_EVERY_S", 0.0)
    for name in ("one", "other"):
        Authority(tmp_path / name).issue(["here"], "server")
    mine = tmp_path / "mine"
    shutil.copytree(tmp_path / "one", mine)
    cert, key, ca = (str(mine / name) for name in FILES)
    client = PeerClient(GatewayConfig(tls_cert=cert, tls_key=key, tls_ca=ca))
    servers = [
        await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=shown(tmp_path / name, "here").listening())
        for name in ("one", "other")
    ]
    one, other = (each.sockets[0].getsockname()[1] for each in servers)
    try:
        assert await _asked(client, one) == 429
        with pytest.raises(PeerFailed):
            await _asked(client, other)
        for name in FILES:
            shutil.copy(tmp_path / "other" / name, mine / name)
        assert await _asked(client, other) == 429
        with pytest.raises(PeerFailed):
            await _asked(client, one)
    finally:
        await client.close()
        for each in servers:
            each.close()


async def test_a_name_of_all_gateways_is_enough(tmp_path: Path) -> None:
    """Where they advertise addresses, as pods do, which no certificate has: it is checked by the name, and no other.
    What is none is refused when a gateway starts."""
    with pytest.raises(ValueError, match="--peer-name"):
        GatewayConfig(redis="redis://r", gateway_token="k" * 16, peer_name="a name")
    Authority(tmp_path).issue(["gateway"], "server")
    tls = shown(tmp_path, "gateway").listening()
    server = await asyncio.start_server(_answer, "127.0.0.2", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        for name, lets_in in (("gateway", True), ("", False), ("somebody", False)):
            client = PeerClient(GatewayConfig(tls_ca=str(tmp_path / "ca.crt"), peer_name=name))
            try:
                if lets_in:
                    assert await _asked(client, port, "127.0.0.2") == 429
                else:
                    with pytest.raises(PeerFailed):
                        await _asked(client, port, "127.0.0.2")
            finally:
                await client.close()
    finally:
        server.close()
