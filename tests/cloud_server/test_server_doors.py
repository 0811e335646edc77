"""Who is let in by a cloud server, and how those who are not are told."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from bare_devices import bystanders, device, news, rows
from clouds import cloud_here, device_hello, until
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from wire.doorstep import MAX_GREETING_OF_ADDRESS
from wire.errors import Code, ConnectionFailed
from wire.frames import Tensor, encode
from wire.limits import GREETING_BYTES
from wire.message import Drain, Failed
from wire.session_messages import (
    Close,
    CloudWelcome,
    Forward,
    Open,
    Result,
)


async def test_admission_is_refused_with_a_time_to_come_back(tiny: Path) -> None:
    """Sessions beyond the limits get session_limit and retry_after; a session too long gets token_limit."""
    async with cloud_here(tiny, 1, max_device_sessions=2, max_model_len=100) as cloud, device(cloud, tiny) as stream:
        for session in (1, 2, 3):
            stream.post(Open(session, 50))
        failed = await news(stream)
        assert isinstance(failed, Failed)
        assert (failed.code, failed.subject, failed.retry_after_s) == (Code.SESSION_LIMIT.value, 3, 1.0)
        stream.post(Close(1))
        stream.post(Open(4, 101))
        failed = await news(stream)
        assert isinstance(failed, Failed) and (failed.code, failed.subject) == (Code.TOKEN_LIMIT.value, 4)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"digest": "sha256:other"}, Code.DIGEST_MISMATCH),
        ({"model": "other"}, Code.MODEL_MISMATCH),
        ({"first_layer": 2}, Code.SPLIT_MISMATCH),
        ({"dtype": "bfloat16"}, Code.DTYPE_MISMATCH),
        ({"credential": "guess"}, Code.UNAUTHORIZED),
    ],
)
async def test_a_device_that_does_not_fit_is_refused(change: dict[str, object], code: Code, tiny: Path) -> None:
    """The hello is answered with the reason, and the device's log has it."""
    async with cloud_here(tiny, 1, cloud_token="secret") as cloud:
        with pytest.raises(ConnectionFailed) as failed:
            async with device(cloud, tiny, **{"credential": "secret", **change}):
                pass
        assert failed.value.code is code
        async with device(cloud, tiny, credential="secret"):
            pass


async def test_frames_that_break_the_protocol_end_only_their_connection(tiny: Path) -> None:
    """Random bytes, cut frames and forbidden messages close that socket; bystanders go on and nothing leaks."""
    hello = encode(device_hello(tiny, 1, 0))
    forward = encode(Forward(1, 0, 0, 1), [rows(2)], 2)
    attacks: list[bytes | bytearray] = [
        b"",
        b"garbage",
        b"\x80\x04K\x01.",
        encode(Open(1, 9)),
        hello[:-3],
        hello + b"x",
        bytes(9 * 2**20),
    ]
    welcome, end = encode(CloudWelcome("c", 1, 1, 1, 1), (), 2), encode(Failed("internal", "why", 9), (), 2)
    after_hello = [forward[:-1], forward + b"\0", welcome, hello, end]
    async with cloud_here(tiny, 1) as cloud, bystanders(cloud, tiny):
        opened: list[bytes | bytearray] = [hello, encode(Open(1, 9), (), 1)]
        two_hellos = [hello, encode(device_hello(tiny, 1, 0), (), 1)]
        for attack in [[each] for each in attacks] + [[*opened, each] for each in after_hello] + [two_hellos]:
            async with connect(cloud.url + "/device", compression=None, max_size=None) as socket:
                try:
                    for each in attack:
                        await socket.send(each)
                    async for _ in socket:
                        pass
                except ConnectionError:
                    pass
                except Exception as error:
                    assert "Closed" in type(error).__name__
                assert socket.close_code in (1002, 1007, 1009), (attack, socket.close_code)
        await until(lambda: len(cloud.server.links) == 1)


async def test_a_vanished_device_frees_everything(tiny: Path) -> None:
    """A socket that just dies takes its sessions with it, once nobody has come back for them in time."""
    async with cloud_here(tiny, 1, resume_s=1.0) as cloud:
        async with AsyncExitStack() as stack:
            stream = await stack.enter_async_context(device(cloud, tiny))
            for session in range(5):
                stream.post(Open(session, 100))
                stream.post(Forward(session, 0, 0, 0), [rows(20)])
            await news(stream)
            stream._transport._websocket.transport.abort()  # type: ignore[attr-defined]
            await until(lambda: not cloud.server.engine.ledger.entries)
        assert cloud.server.engine.ledger.pages.used == 0
        assert cloud.server.engine.sessions.scheduler.waiting_rows == 0


async def test_browsers_are_turned_away(tiny: Path) -> None:
    """A websocket with an Origin is a page's."""
    async with cloud_here(tiny, 1) as cloud:
        with pytest.raises(Exception, match="403"):
            await connect(cloud.url + "/device", origin="https://evil.example")  # type: ignore[arg-type]


async def test_a_silent_crowd_keeps_no_device_out(tiny: Path) -> None:
    """A hundred sockets that say nothing: the oldest of them go, and a device is served at once."""
    clock = asyncio.get_running_loop().time
    async with cloud_here(tiny, 1) as cloud:
        silent = [await connect(cloud.url + "/device", close_timeout=0.1) for _ in range(100)]
        began = clock()
        async with device(cloud, tiny):
            assert clock() - began < 10
        await until(lambda: len(cloud.server._doorstep) <= MAX_GREETING_OF_ADDRESS)
        assert silent[-1].state is State.OPEN
        await until(lambda: sum(each.state is State.OPEN for each in silent) <= MAX_GREETING_OF_ADDRESS)
        await asyncio.gather(*(each.close() for each in silent))


async def test_megabytes_before_the_hello_are_not_decoded(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are they taken in: no websocket message is longer than a part of a frame."""
    decoded: list[int] = []
    async with cloud_here(tiny, 1) as cloud:
        monkeypatch.setattr("wire.frames._DECODER", SimpleNamespace(decode=lambda data: decoded.append(len(data))))
        for size, code in ((6 * 2**20, 1009), (GREETING_BYTES + 1, 1009), (GREETING_BYTES, 1002)):
            message = encode(Forward(1, 0, 0, 1), [Tensor("bfloat16", (size // 2 - 18,), bytes(size - 36))])
            message += bytes(size - len(message))
            async with connect(cloud.url + "/device", compression=None) as socket:
                with suppress(ConnectionClosed):  # The server may close before all of it is sent.
                    await socket.send(message)
                await socket.wait_closed()
                assert socket.close_code == code, size
    assert not decoded


async def test_no_more_devices_than_allowed(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many is told to come back, and is served once another has gone; a stranger learns nothing of it."""
    async with cloud_here(tiny, 1, cloud_token="s") as cloud, device(cloud, tiny, credential="s"):
        monkeypatch.setattr("cloud_server.server.MAX_DEVICES", 2)
        async with device(cloud, tiny, credential="s"):
            for credential, code, close_code in (("s", Code.OVERLOADED, 1013), ("", Code.UNAUTHORIZED, 4401)):
                with pytest.raises(ConnectionFailed) as refused:
                    async with device(cloud, tiny, credential=credential):
                        pass
                assert (refused.value.code, refused.value.close_code) == (code, close_code)
        await until(lambda: len(cloud.server.links) == 1)
        async with device(cloud, tiny, credential="s"):
            pass


async def test_one_device_leaves_room_for_others(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many connections it opens; who has none yet finds a place."""
    monkeypatch.setattr("cloud_server.server.MAX_DEVICES", 18)
    async with cloud_here(tiny, 1) as cloud, AsyncExitStack() as stack:
        with pytest.raises(ConnectionFailed) as refused:
            for _ in range(18):
                await stack.enter_async_context(device(cloud, tiny))
        assert refused.value.code is Code.OVERLOADED and len(cloud.server.links) == 16
        async with device(cloud, tiny, name="another"):
            pass


async def test_nobody_is_let_in_before_the_layers_run(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is connected counts as one that can answer, so it is told to come back while layers are started."""
    async with cloud_here(tiny, 1) as cloud:
        with monkeypatch.context() as starting:
            starting.setattr(cloud.server.engine.sessions, "lost", True)
            with pytest.raises(ConnectionFailed, match="being started") as refused:
                async with device(cloud, tiny):
                    pass
            assert refused.value.code is Code.OVERLOADED
        async with device(cloud, tiny):
            pass


async def test_draining(tiny: Path) -> None:
    """Unready, new sessions and devices refused, devices told, and done when the last session closes."""
    async with (
        cloud_here(tiny, 1, drain_within_s=10.0, cloud_token="s", operator_token="boss") as cloud,
        device(cloud, tiny, credential="s") as stream,
    ):
        http = cloud.url.replace("ws", "http", 1)
        stream.post(Open(1, 50))
        stream.post(Forward(1, 0, 0, 0), [rows(2)])
        await news(stream)
        async with httpx.AsyncClient(trust_env=False) as client:
            devices_own = {"Authorization": "Bearer s"}
            assert (await client.post(http + "/drain")).status_code == 401
            assert (await client.post(http + "/drain", headers=devices_own)).status_code == 401
            drained = asyncio.create_task(client.post(http + "/drain", headers={"Authorization": "Bearer boss"}))
            assert isinstance(await news(stream), Drain)
            assert (await client.get(http + "/health")).status_code == 503
            assert (await client.get(http + "/live")).status_code == 200, "who is draining must not be ended for it"
            stream.post(Open(2, 50))
            failed = await news(stream)
            assert isinstance(failed, Failed) and failed.code == Code.DRAINING.value
            with pytest.raises(ConnectionFailed) as refused:
                async with device(cloud, tiny, credential="s"):
                    pass
            assert refused.value.code is Code.DRAINING
            stream.post(Forward(1, 1, 2, 1), [rows(1)])
            assert isinstance(await news(stream), Result)
            assert not drained.done()
            stream.post(Close(1))
            assert (await drained).json() == {"sessions_left": 0}


async def test_operators_doors(tiny: Path) -> None:
    """/state and /drain are for whoever has the operators' token, and for no device and no web page."""
    async with (
        cloud_here(tiny, 1, cloud_token="s", operator_token="boss") as cloud,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        http = cloud.url.replace("ws", "http", 1)
        for headers in ({}, {"Authorization": "Bearer s"}):
            assert (await client.get(http + "/state", headers=headers)).status_code == 401
        headers = {"Authorization": "Bearer boss"}
        assert (await client.get(http + "/state", headers=headers)).status_code == 200
        page = await client.post(http + "/drain", headers={**headers, "Origin": "https://evil.example"})
        assert page.status_code == 403
        assert (await client.get(http + "/health")).status_code == 200
