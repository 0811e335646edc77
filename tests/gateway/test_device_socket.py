"""How agents are let in."""

from __future__ import annotations

from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from gateway import device_socket
from gateway.config import GatewayConfig
from gateway.device_socket import check_agent
from gateway.keys import KeyRing
from wire.errors import Code, ConnectionFailed
from wire.messages import AgentHello, ServedModel

MODEL = ServedModel("m", 10, 1)


def code_of(token: str = "", connected: int = 0, **members: object) -> Code | None:
    fields = {"name": "a", "credential": "", "models": [MODEL], "capacity": 1} | members
    failure = check_agent(AgentHello(**fields), KeyRing([token]), connected, 2)  # type: ignore[arg-type]
    return failure.code if failure else None


def test_the_credential_comes_first() -> None:
    """A stranger learns nothing else, and an empty token fits only an empty credential."""
    assert code_of("secret", capacity=0) is Code.UNAUTHORIZED
    assert code_of("secret", credential="secret") is None
    assert code_of("secret", credential="secret ") is Code.UNAUTHORIZED
    assert code_of("", credential="anything") is Code.UNAUTHORIZED
    assert code_of("") is None


def test_a_hello_that_makes_no_sense_is_refused() -> None:
    """No capacity, a model twice, a model without name or room, too many agents."""
    assert code_of(capacity=0) is Code.INVALID_REQUEST
    assert code_of(models=[MODEL, MODEL]) is Code.INVALID_REQUEST
    assert code_of(models=[ServedModel("", 10, 1)]) is Code.INVALID_REQUEST
    assert code_of(models=[ServedModel("m", 0, 1)]) is Code.INVALID_REQUEST
    assert code_of(connected=2) is Code.OVERLOADED


async def test_a_wrong_token_is_told_and_closed(serving: Any, connected: Any) -> None:
    """With the reason, in constant time; the right one is let in."""
    async with serving(GatewayConfig(device_token="right")) as gateway:
        with pytest.raises(ConnectionFailed) as refused:
            async with connected(gateway, credential="wrong"):
                pass
        assert refused.value.code is Code.UNAUTHORIZED
        assert "right" not in refused.value.message
        async with connected(gateway, credential="right"):
            assert len(gateway.dispatcher.links) == 1
        await gateway.until(lambda: not gateway.dispatcher.links)


async def test_garbage_ends_only_its_own_connection(gateway: Any, agent: Any, chat: Any) -> None:
    """Random bytes, text, a message out of order."""
    for garbage in (b"\x00" * 50, "hello", b"", b"\xff" * 4096):
        async with connect(f"{gateway.ws_url}/device", proxy=None, compression=None) as socket:
            await socket.send(garbage)
            with pytest.raises(ConnectionClosed):
                while True:
                    await socket.recv()
    assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200


async def test_a_web_page_cannot_pose_as_an_agent(gateway: Any) -> None:
    """Browsers say where a page is from."""
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"{gateway.ws_url}/device", origin=Origin("http://evil.test"), proxy=None)
    assert refused.value.response.status_code == 403


async def test_a_draining_gateway_takes_no_agent(gateway: Any, connected: Any) -> None:
    """It is sent elsewhere."""
    await gateway.http.post("/drain")
    with pytest.raises(ConnectionFailed) as refused:
        async with connected(gateway):
            pass
    assert refused.value.code is Code.DRAINING


async def test_sockets_that_say_nothing_cannot_crowd_agents_out(
    gateway: Any, connected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their number is bounded; who has said hello does not count, who has left neither."""
    monkeypatch.setattr(device_socket, "MAX_GREETING", 2)
    url = f"{gateway.ws_url}/device"
    async with connected(gateway), connected(gateway), connected(gateway):
        silent = [await connect(url, proxy=None) for _ in range(2)]
        with pytest.raises(InvalidStatus):
            await connect(url, proxy=None)
        assert len(gateway.dispatcher.links) == 3
        for socket in silent:
            await socket.send(b"not a hello")
            await socket.wait_closed()
        async with connected(gateway):
            assert len(gateway.dispatcher.links) == 4
