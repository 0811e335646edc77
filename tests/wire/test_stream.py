"""Streams on real websockets: order, endings, and peers that do not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import uvicorn
from bench.testbed.relay import Relay
from clouds import until
from fastapi import FastAPI, WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

import wire.connection
import wire.stream
from wire.connection import Connection, Role
from wire.errors import Code, ConnectionFailed, SessionFailed
from wire.frames import Tensor
from wire.limits import CLOUD_LINK, MAX_FRAME_BYTES
from wire.messages import CloudWelcome, DeviceHello, Failed, Forward, Open, Result
from wire.stream import Stream, accept, dial

HELLO = DeviceHello("device", "", "model", "sha256:00", 1, 3, 4, "float32")
WELCOME = CloudWelcome("cloud", 8, 8, 8, 8)


@asynccontextmanager
async def served(serve: Callable[[Stream], Awaitable[None]]) -> AsyncIterator[str]:
    """``serve`` behind a real server, after the greeting."""
    app = FastAPI()
    ends: list[ConnectionFailed] = []

    @app.websocket("/device")
    async def device(websocket: WebSocket) -> None:
        try:
            async with accept(websocket, Role.CLOUD, CLOUD_LINK) as stream:
                await stream.receive()
                stream.post(WELCOME)
                await serve(stream)
        except ConnectionFailed as failure:
            ends.append(failure)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app, log_level="error", ws="websockets-sansio", ws_max_size=MAX_FRAME_BYTES, ws_per_message_deflate=False
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve([listener]))
        await until(lambda: server.started)
        try:
            yield f"ws://127.0.0.1:{listener.getsockname()[1]}/device"
        finally:
            server.should_exit = True
            await task


async def echo(stream: Stream) -> None:
    """Answer every forward with its own rows."""
    while True:
        frame = await stream.receive()
        if isinstance(frame.message, Forward):
            stream.post(Result(frame.message.session, frame.message.sequence, 0, 0, 0), frame.tensors)


async def greeted(stream: Stream) -> None:
    """Say hello, hear the welcome."""
    stream.post(HELLO)
    assert (await stream.receive()).message == WELCOME


async def test_many_frames_arrive_in_order() -> None:
    """A thousand frames posted without waiting come back in order, bytes unchanged."""
    async with served(echo) as url, dial(url, Role.DEVICE, CLOUD_LINK) as stream:
        await greeted(stream)
        for number in range(1000):
            stream.post(Forward(1, number, 0, 1), [Tensor("float32", (1, 4), number.to_bytes(16, "little"))])
        for number in range(1000):
            frame = await stream.receive()
            assert isinstance(frame.message, Result) and frame.message.sequence == number
            assert bytes(frame.tensors[0].data) == number.to_bytes(16, "little")


async def test_the_largest_frame_passes() -> None:
    """A frame just within the limit goes both ways."""
    rows = (MAX_FRAME_BYTES - 200) // 16
    async with served(echo) as url, dial(url, Role.DEVICE, CLOUD_LINK) as stream:
        await greeted(stream)
        stream.post(Forward(1, 0, 0, rows), [Tensor("float32", (rows, 4), bytes(rows * 16))])
        assert (await stream.receive()).tensors[0].shape == (rows, 4)


@pytest.mark.parametrize("announced", [True, False])
async def test_a_message_that_takes_long_to_arrive(announced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a link that takes longer for it than silence may last it arrives; unannounced it would have been silence."""
    monkeypatch.setattr(wire.connection, "DEAD_AFTER_S", 0.6)
    monkeypatch.setattr(wire.connection, "HEARTBEAT_S", 0.15)
    if not announced:
        monkeypatch.setattr(Connection, "announcement", lambda *_: None)
    rows = Tensor("float32", (2**16, 4), bytes(2**20))
    async with served(echo) as url:
        port = int(url.split(":")[2].split("/")[0])
        with Relay("", "127.0.0.1", port, 0.0, bytes_s=2**19) as relay:
            async with dial(f"ws://127.0.0.1:{relay.port}/device", Role.DEVICE, CLOUD_LINK) as stream:
                await greeted(stream)
                stream.post(Forward(1, 0, 0, 1), [rows])
                if announced:
                    assert (await asyncio.wait_for(stream.receive(), 20)).tensors[0].shape == rows.shape
                    return
                with pytest.raises(ConnectionFailed) as failure:
                    await asyncio.wait_for(stream.receive(), 20)
                assert failure.value.code is Code.TIMEOUT


async def test_the_reason_of_a_refusal_reaches_the_other_side() -> None:
    """An error that leaves the block is told to the peer, code and message."""

    async def refuse(stream: Stream) -> None:
        raise ConnectionFailed(Code.DIGEST_MISMATCH, "other weights")

    async with served(refuse) as url, dial(url, Role.DEVICE, CLOUD_LINK) as stream:
        await greeted(stream)
        with pytest.raises(ConnectionFailed) as failed:
            await stream.receive()
        assert (failed.value.code, failed.value.message) == (Code.DIGEST_MISMATCH, "other weights")
        with pytest.raises(ConnectionFailed):  # And so does every later call.
            await stream.receive()
        with pytest.raises(ConnectionFailed):
            stream.post(Open(1, 1))


async def test_a_session_error_leaves_the_connection_open() -> None:
    """Failed with a subject is a frame like others."""

    async def fail_first(stream: Stream) -> None:
        await stream.receive()
        failure = SessionFailed(Code.SHAPE_MISMATCH, "no")
        stream.post(Failed(failure.code.value, failure.message, 1))
        await echo(stream)

    async with served(fail_first) as url, dial(url, Role.DEVICE, CLOUD_LINK) as stream:
        await greeted(stream)
        stream.post(Open(1, 1))
        assert (await stream.receive()).message == Failed("shape_mismatch", "no", 1)
        stream.post(Forward(2, 0, 0, 1), [Tensor("float32", (1, 1), b"1234")])
        assert isinstance((await stream.receive()).message, Result)


@pytest.mark.parametrize("reason", ["😀" * 200, "x" * 500, "ä\n" * 100])
async def test_a_long_reason_still_arrives(reason: str) -> None:
    """However long and whatever its characters, an error ends the connection in order and is told in full."""

    async def refuse(stream: Stream) -> None:
        raise ConnectionFailed(Code.INTERNAL, reason)

    async with served(refuse) as url, dial(url, Role.DEVICE, CLOUD_LINK) as stream:
        await greeted(stream)
        with pytest.raises(ConnectionFailed) as failed:
            await stream.receive()
        assert failed.value.message == reason


async def test_nobody_there() -> None:
    """Dialling where nobody listens is a typed error that names the address."""
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:9") as failed:
        async with dial("ws://127.0.0.1:9/device", Role.DEVICE, CLOUD_LINK):
            pass
    assert failed.value.code is Code.LOST


async def test_text_and_oversized_messages_close_the_connection() -> None:
    """A text message ends as a bad frame (1007), one over the limit as too large (1009)."""
    async with served(echo) as url:
        for message, code in (("hello", 1007), (bytes(MAX_FRAME_BYTES + 1), 1009)):
            async with connect(url, compression=None) as socket:
                with suppress(ConnectionClosed):  # The server may close before all of it is sent.
                    await socket.send(message)
                await socket.wait_closed()
                assert socket.close_code == code


async def test_a_peer_that_never_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a message cannot leave within its time the connection ends, whatever the peer does."""
    monkeypatch.setattr(wire.stream, "SEND_WITHIN_S", 0.5)
    monkeypatch.setattr(wire.stream, "SLOWEST_BYTES_S", 2**24)
    ended: asyncio.Future[ConnectionFailed] = asyncio.get_running_loop().create_future()

    async def flood(stream: Stream) -> None:
        try:
            for number in range(6):
                stream.post(Result(1, number, 0, 0, 0), [Tensor("float32", (2**20, 1), bytes(2**22))])
            await stream.receive()
        except ConnectionFailed as failure:
            ended.set_result(failure)
            raise

    async with served(flood) as url:
        socket = await connect(url, compression=None, max_size=None, max_queue=1, ping_interval=None)
        await socket.send(Connection(Role.DEVICE, CLOUD_LINK, 0.0).send(HELLO, (), 0.0))
        failure = await asyncio.wait_for(ended, 10)
        assert failure.code is Code.TIMEOUT
        socket.transport.abort()


async def test_queued_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Posting more than may wait ends the connection instead of filling memory."""
    monkeypatch.setattr(wire.stream, "MAX_QUEUED_BYTES", 10_000)
    async with served(echo) as url, dial(url, Role.DEVICE, CLOUD_LINK) as stream:
        await greeted(stream)
        with pytest.raises(ConnectionFailed, match="wait"):
            for number in range(100):
                stream.post(Forward(1, number, 0, 1), [Tensor("float32", (1, 250), bytes(1000))])
        with pytest.raises(ConnectionFailed):
            await stream.receive()
