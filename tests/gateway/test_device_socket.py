"""How agents are let in."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.protocol import State
from websockets.typing import Origin

from gateway.config import GatewayConfig
from gateway.device_socket import NAME, check_agent
from wire.connection import Connection, Role
from wire.doorstep import MAX_GREETING
from wire.errors import Code, ConnectionFailed
from wire.frames import decode, encode
from wire.limits import GATEWAY_LINK
from wire.message import Failed
from wire.messages import AnyMessage
from wire.padding import Padding
from wire.request_messages import AgentHello, AgentState, GatewayWelcome, Generate, ServedModel

MODEL = ServedModel("m", 10, 1)


def code_of(token: str = "", connected: int = 0, **members: object) -> Code | None:
    fields = {"name": "a", "credential": "", "models": [MODEL], "capacity": 1} | members
    failure = check_agent(AgentHello(**fields), token, connected, 2)  # type: ignore[arg-type]
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
            assert len(gateway.roster.links) == 1
        await gateway.until(lambda: not gateway.roster.links)


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
    await gateway.drain()
    with pytest.raises(ConnectionFailed) as refused:
        async with connected(gateway):
            pass
    assert refused.value.code is Code.DRAINING


async def test_sockets_that_say_nothing_cannot_crowd_agents_out(gateway: Any, connected: Any) -> None:
    """Three hundred of one address, and as many of others: each is let in, the oldest goes for it, and an agent that
    comes is connected at once. They are few at any time; who has said hello does not count."""
    url = f"{gateway.ws_url}/device"
    clock = asyncio.get_running_loop().time
    async with connected(gateway) as agent:
        sockets = []
        for number in range(300):
            address = f"127.0.0.{2 + number % 4}" if number % 2 else "127.0.0.1"
            sockets.append(await connect(url, proxy=None, local_addr=(address, 0), close_timeout=0.1))
        began = clock()
        async with connected(gateway):
            assert clock() - began < 10
            assert len(gateway.roster.links) == 2
        await gateway.until(lambda: sum(socket.state is State.OPEN for socket in sockets) <= MAX_GREETING)
        assert all(socket.state is not State.OPEN for socket in sockets[: 300 - 2 * MAX_GREETING])
        assert sockets[-1].state is State.OPEN
        assert not agent.drained
        await asyncio.gather(*(socket.close() for socket in sockets))


async def test_an_agent_that_is_slow_to_speak_keeps_its_place_beside_a_crowd(gateway: Any, connected: Any) -> None:
    """Those of one address take each other's places, not another's."""
    url = f"{gateway.ws_url}/device"
    async with connect(url, proxy=None, local_addr=("127.0.0.9", 0)) as slow:
        crowd = [await connect(url, proxy=None, close_timeout=0.1) for _ in range(MAX_GREETING + 10)]
        await slow.send(encode(AgentHello("slow", "", [MODEL], 1)))
        assert isinstance(decode(await slow.recv(decode=False), GATEWAY_LINK).message, GatewayWelcome)
        await asyncio.gather(*(socket.close() for socket in crowd))


async def test_an_agent_that_asks_for_it_is_padded_both_ways(gateway: Any) -> None:
    """All that either side says after its hello is of one length, and is heard as it was said."""
    size = Padding.of(GATEWAY_LINK).size(1)
    async with connect(f"{gateway.ws_url}/device", proxy=None) as socket:
        agent = Connection(Role.AGENT, GATEWAY_LINK, 0.0)
        await socket.send(_said(agent, AgentHello("padded", "", [MODEL], 1, pads=True)))
        frame = agent.receive(await socket.recv(decode=False), 0.0)
        assert frame is not None and frame.message == GatewayWelcome(NAME, True)
        state = _said(agent, AgentState(0))
        await socket.send(state)
        asked = asyncio.create_task(gateway.http.post("/v1/completions", json={"model": "m", "prompt": "Hi"}))
        request = await socket.recv(decode=False)
        assert len(state) == len(request) == size
        frame = agent.receive(request, 0.0)
        assert frame is not None and isinstance(frame.message, Generate) and frame.message.prompt == "Hi"
        number = frame.message.request
        await socket.send(_said(agent, Failed("internal", "no more", number)))
        assert (await asked).status_code >= 500


def _said(agent: Connection, message: AnyMessage) -> bytes:
    data = agent.frame(message, (), 0.0)
    agent.leaves(data, 0.0)
    return bytes(data)


@pytest.mark.parametrize("whole", [True, False])
async def test_megabytes_before_the_hello_are_not_decoded(
    gateway: Any, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """6 MiB of anything, or a little of another message: refused by its length, or its kind."""
    decoded: list[int] = []
    monkeypatch.setattr("wire.frames._DECODER", SimpleNamespace(decode=lambda data: decoded.append(len(data))))
    message = encode(Generate(1, "", "", "", [0] * (6 * 2**20 - 100 if whole else 10_000)))
    async with connect(f"{gateway.ws_url}/device", proxy=None, compression=None) as socket:
        await socket.send(message)
        await socket.wait_closed()
        assert socket.close_code == (1009 if whole else 1002)
    assert not decoded
