"""Streams on real websockets: order, endings, and peers that do not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import uvicorn
from bench.testbed.relay import Relay
from clouds import until
from fastapi import FastAPI, WebSocket
from fault_proxy import FaultProxy, Faults
from freezing_proxy import FreezingProxy
from quick_server import QuickServer
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

import wire.connection
import wire.stream
from wire.connection import Role
from wire.dialled import CLOSE_WITHIN_S
from wire.errors import Code, ConnectionFailed, Crowded, SessionFailed
from wire.frames import Tensor, encode, stamp
from wire.limits import CLOUD_LINK, DEAD_AFTER_S, MAX_FRAME_BYTES, MESSAGE_BYTES
from wire.message import Failed
from wire.parts import first_part
from wire.session_messages import CloudWelcome, DeviceHello, Forward, Open, Result
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
            app, log_level="error", ws="websockets-sansio", ws_max_size=MESSAGE_BYTES, ws_per_message_deflate=False
        )
        server = QuickServer(config)
        task = asyncio.create_task(server._serve([listener]))
        await until(lambda: server.started)
        try:
            yield f"ws://127.0.0.1:{listener.getsockname()[1]}/device"
        finally:
            server.stop.set()
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


async def test_a_message_that_takes_long_to_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a link that takes longer for it than silence may last it arrives; sent whole it would have been silence."""
    monkeypatch.setattr(wire.connection, "DEAD_AFTER_S", 1.5)
    monkeypatch.setattr(wire.connection, "HEARTBEAT_S", 0.3)
    rows = Tensor("float32", (2**15, 4), bytes(2**19))
    async with served(echo) as url:
        port = int(url.split(":")[2].split("/")[0])
        with Relay("", "127.0.0.1", port, 0.0, bytes_s=2**18) as relay:
            async with dial(f"ws://127.0.0.1:{relay.port}/device", Role.DEVICE, CLOUD_LINK) as stream:
                await greeted(stream)
                stream.post(Forward(1, 0, 0, 1), [rows])
                assert (await asyncio.wait_for(stream.receive(), 20)).tensors[0].shape == rows.shape


async def test_who_announces_much_and_dies_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as anybody who says nothing any more."""
    monkeypatch.setattr(wire.connection, "DEAD_AFTER_S", 0.5)
    ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    clock = asyncio.get_running_loop().time

    async def wait(stream: Stream) -> None:
        began = clock()
        try:
            await stream.receive()
        finally:
            ended.set_result(clock() - began)

    async with served(wait) as url:
        socket = await connect(url, compression=None, ping_interval=None)
        await socket.send(encode(HELLO))
        await socket.recv()
        part = first_part(1, memoryview(bytes(8 * 2**20 - 4096)))
        stamp(part, 1)
        await socket.send(part)
        assert await asyncio.wait_for(ended, 60) < DEAD_AFTER_S
        socket.transport.abort()


async def test_a_word_passes_a_long_message_on_a_slow_link() -> None:
    """A decode row and its answer take a moment while 4 MB are on their way to the cloud, which would take 20 s; then
    they are given up, and the link is free for others at once."""
    times: list[float] = []
    clock = asyncio.get_running_loop().time
    async with (
        served(echo) as url,
        FaultProxy(url.removesuffix("/device"), Faults(bytes_s=200_000)) as slow,
        dial(f"{slow.url}/device", Role.DEVICE, CLOUD_LINK) as stream,
    ):
        await greeted(stream)
        stream.post(Forward(1, 0, 0, 1), [Tensor("float32", (2**18, 4), bytes(2**22))])
        for number in range(3):
            began = clock()
            stream.post(Forward(2, number, 0, 1), [Tensor("float32", (1, 4), bytes(16))])
            answer = await asyncio.wait_for(stream.receive(), 60)
            assert isinstance(answer.message, Result) and answer.message.session == 2
            times.append(clock() - began)
        assert sorted(times)[len(times) // 2] < 3, "a part takes a third of a second"
        assert stream.queued_bytes > 2**20 and stream.withdraw(1) and not stream.queued_bytes
        stream.post(Forward(3, 0, 0, 1), [Tensor("float32", (2500, 4), bytes(40_000))])
        answer = await asyncio.wait_for(stream.receive(), 60)
        assert isinstance(answer.message, Result) and answer.message.session == 3


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
        for message, code in (("hello", 1007), (bytes(MESSAGE_BYTES + 1), 1009)):
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
        await socket.send(encode(HELLO))
        failure = await asyncio.wait_for(ended, 60)
        assert failure.code is Code.TIMEOUT and "did not leave" in failure.message
        socket.transport.abort()


async def test_who_is_given_up_for_silence_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a network that stands still no goodbye comes either: whoever has noticed it may dial again at once."""
    monkeypatch.setattr(wire.connection, "DEAD_AFTER_S", 0.5)
    clock, noticed = asyncio.get_running_loop().time, 0.0
    async with served(echo) as url:
        with FreezingProxy(int(url.removesuffix("/device").rpartition(":")[2])) as way:
            with pytest.raises(ConnectionFailed) as failed:
                async with dial(f"ws://127.0.0.1:{way.port}/device", Role.DEVICE, CLOUD_LINK) as stream:
                    await greeted(stream)
                    way.freeze_after(1)
                    stream.post(Open(1, 9))
                    try:
                        await stream.receive()
                    finally:
                        noticed = clock()
            assert failed.value.code is Code.TIMEOUT
            assert clock() - noticed < CLOSE_WITHIN_S / 2


async def test_unread_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an application has not taken yet waits at its peer, however few frames it is; then all of it comes."""
    monkeypatch.setattr(wire.stream, "MAX_UNREAD_BYTES", 10_000)
    go_on, streams = asyncio.Event(), list[Stream]()

    async def slow(stream: Stream) -> None:
        streams.append(stream)
        await go_on.wait()
        await echo(stream)

    async with served(slow) as url, dial(url, Role.DEVICE, CLOUD_LINK) as stream:
        await greeted(stream)
        for number in range(50):
            stream.post(Forward(1, number, 0, 1), [Tensor("float32", (1, 250), bytes(1000))])
        await until(lambda: streams and streams[0]._unread_bytes > 10_000)
        await asyncio.sleep(0.2)
        assert streams[0]._in.qsize() == 11
        go_on.set()
        for number in range(50):
            message = (await stream.receive()).message
            assert isinstance(message, Result) and message.sequence == number
        assert streams[0]._unread_bytes == 0


async def test_queued_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that does not take what is short is given up instead of filling memory."""
    monkeypatch.setattr(wire.stream, "MAX_QUEUED_BYTES", 10_000)
    async with served(echo) as url, dial(url, Role.DEVICE, CLOUD_LINK) as stream:
        await greeted(stream)
        with pytest.raises(ConnectionFailed, match="wait"):
            for number in range(100):
                stream.post(Forward(1, number, 0, 1), [Tensor("float32", (1, 250), bytes(1000))])
        with pytest.raises(ConnectionFailed):
            await stream.receive()


async def test_what_is_long_is_refused_where_it_is_crowded_and_the_link_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what may wait altogether, and of one party beyond its share, others have theirs; words always have room;
    who waits for room gets it in order, and learns of the end of the connection."""
    monkeypatch.setattr("wire.outbox.MAX_QUEUED_BYTES", 6 * 2**20)
    monkeypatch.setattr("wire.outbox.PARTY_BYTES", 2 * 2**20)
    rows = [Tensor("float32", (2**16, 4), bytes(2**20 - 100))]
    async with served(echo) as url, dial(url, Role.DEVICE, CLOUD_LINK) as stream:
        await greeted(stream)
        may_leave, send = asyncio.Event(), stream._transport.send

        async def slow(data: bytearray) -> None:
            await may_leave.wait()
            await send(data)

        monkeypatch.setattr(stream._transport, "send", slow)
        rows = [Tensor("float32", (2**16 - 100, 4), bytes(2**20 - 1600))]
        for party in ("a", "b"):
            for session in (1, 2):
                stream.post(Forward(session + 10 * (party == "b"), 0, 0, 1), rows, party)
            with pytest.raises(Crowded):
                stream.post(Forward(3, 0, 0, 1), rows, party)
        for session in (21, 22):
            stream.post(Forward(session, 0, 0, 1), rows)
        with pytest.raises(Crowded):
            stream.post(Forward(23, 0, 0, 1), rows)
        stream.post(Open(30, 1))
        waiting = [asyncio.create_task(stream.headroom(2**20, "a")) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert not any(each.done() for each in waiting)
        may_leave.set()
        await asyncio.wait_for(asyncio.gather(*waiting), 60)
        for _ in range(6):
            assert isinstance((await stream.receive()).message, Result)
        may_leave.clear()
        for session in (41, 42):
            stream.post(Forward(session, 0, 0, 1), rows, "a")
        ended = asyncio.create_task(stream.headroom(2**21, "a"))
        await asyncio.sleep(0.01)
        stream.fail(ConnectionFailed(Code.LOST, "why"))
        with pytest.raises(ConnectionFailed):
            await asyncio.wait_for(ended, 60)


@pytest.mark.parametrize("where", ["{other}", "http://[", "ws://h:99999/", "/device"])
async def test_nobody_is_followed_elsewhere(where: str) -> None:
    """Secrets and hidden states go to the address that was given. What says to go elsewhere, or nonsense, is nobody."""
    visits: list[str] = []

    async def answer(name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(name)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    servers = {}
    for name in ("first", "other"):
        servers[name] = await asyncio.start_server(partial(answer, name), "127.0.0.1", 0)
    ports = {name: server.sockets[0].getsockname()[1] for name, server in servers.items()}
    location = where.format(other=f"ws://127.0.0.1:{ports['other']}/device")
    with pytest.raises(ConnectionFailed, match="not followed") as failed:
        async with dial(f"ws://127.0.0.1:{ports['first']}/device", Role.DEVICE, CLOUD_LINK):
            pass
    assert failed.value.code is Code.LOST and visits == ["first"]
    for server in servers.values():
        server.close()
