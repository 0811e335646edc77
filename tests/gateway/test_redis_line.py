"""Redis gone, slow or full of nonsense: nobody waits for long, it is said once, and it heals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis_here import RedisServer

from gateway.registry import line as line_module
from gateway.registry.line import ANSWER_WITHIN_S, MOST_WAITING, RedisLine
from service.secret_files import FileSecret

SOON_S = 30.0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where redis is honest, a slow machine is not taken for one that has gone."""
    monkeypatch.setattr(line_module, "ANSWER_WITHIN_S", SOON_S)


@asynccontextmanager
async def opened(url: str, told: list[bool]) -> AsyncIterator[RedisLine]:
    """A line to this address."""
    line = RedisLine(url, told.append)
    await line.open()
    try:
        yield line
    finally:
        await line.close()


async def until_up(line: RedisLine, up: bool) -> None:
    end = asyncio.get_running_loop().time() + SOON_S
    while line.up is not up:
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.01)


@asynccontextmanager
async def liar(answer: bytes, *, honest_at_first: bool) -> AsyncIterator[str]:
    """Somebody who listens as redis does and says something else, or nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if honest_at_first and (b"CLIENT" in data or b"trilby:probe" in data):
                    writer.write(b"+OK\r\n" * max(1, data.count(b"CLIENT")))
                elif answer:
                    writer.write(answer)
                    await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_what_is_asked_at_once_is_answered_in_order(patient: None) -> None:
    """Each caller gets its own answer; an error is nobody else's."""
    with RedisServer() as server:
        async with opened(server.url, []) as line:
            await until_up(line, True)
            asked = [line.ask("INCR", "n") for _ in range(100)]
            wrong = line.ask("NO-SUCH-COMMAND")
            assert await asyncio.gather(*asked, wrong) == [*range(1, 101), None]
            line.post("SET", "n", "7")
            assert await line.ask("GET", "n") == b"7" and line.up


async def test_redis_goes_and_comes_back(patient: None) -> None:
    """Nobody waits for it meanwhile; both are told once."""
    told: list[bool] = []
    with RedisServer() as server:
        async with opened(server.url, told) as line:
            await until_up(line, True)
            server.kill()
            assert await line.ask("PING") is None
            await until_up(line, False)
            began = asyncio.get_running_loop().time()
            assert [await line.ask("PING") for _ in range(100)] == [None] * 100
            assert asyncio.get_running_loop().time() - began < SOON_S
            server.start()
            await until_up(line, True)
            assert await line.ask("PING") in (b"PONG", "PONG", True)
            assert told[-3:] == [True, False, True]


async def test_a_file_without_a_url_is_redis_gone(patient: None, tmp_path: Path) -> None:
    """A URL that is half written, or whose password is not quoted: it is said, and tried until the file is right."""
    told: list[bool] = []
    with RedisServer() as server:
        file = tmp_path / "redis"
        for text in ("redis://:pa/ss@127.0.0.1:6379", "redi"):
            file.write_text(text)
            url = FileSecret(str(file), many=False)
            async with opened(url, told) as line:
                assert not line.up and line.losses == 1
                file.write_text(server.url)
                await until_up(line, True)
                assert await line.ask("PING") in (b"PONG", "PONG", True)
        assert told == [False, True] * 2


@pytest.mark.parametrize("turns", range(12))
async def test_who_is_cancelled_again_and_again_leaves_no_connection(turns: int, patient: None) -> None:
    """However soon the next cancellation comes: the connection is closed before ``close`` returns."""
    with RedisServer() as server:
        async with opened(server.url, []) as line:
            await until_up(line, True)
            task = line._task
            while task is not None and not task.done():
                task.cancel()
                for _ in range(turns + 1):
                    await asyncio.sleep(0)
            await line.close()
        connections = await asyncio.to_thread(server.client.client_list)
        end = asyncio.get_running_loop().time() + SOON_S
        while len(connections) > 1 and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
            connections = await asyncio.to_thread(server.client.client_list)
        assert len(connections) == 1


async def test_a_redis_that_takes_nothing_is_none(patient: None) -> None:
    """A replica of nobody refuses what is written."""
    with RedisServer() as server:
        async with opened(server.url, []) as line:
            await until_up(line, True)
            server.client.replicaof("127.0.0.1", "1")
            assert await line.ask("SET", "a", "b") is None
            await until_up(line, False)
            server.client.replicaof("NO", "ONE")
            await until_up(line, True)


@pytest.mark.parametrize("honest_at_first", [False, True])
@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n", b"*3\r\n", b"$99999999999\r\n", b"+OK\r\n" * 50, b"*-7\r\n"])
async def test_nobody_waits_for_a_redis_that_lies(
    answer: bytes, honest_at_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks goes on within two round trips, whatever comes; and nothing of it breaks the line for good."""
    monkeypatch.setattr(line_module, "CONNECT_WITHIN_S", 0.3)
    async with liar(answer, honest_at_first=honest_at_first) as url, opened(url, []) as line:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            began = loop.time()
            await asyncio.gather(*(line.ask("GET", "a") for _ in range(5)))
            assert loop.time() - began < SOON_S
        assert line._task is not None and not line._task.done()


async def test_more_than_can_wait_is_not_kept() -> None:
    """Memory is bounded however slow redis is."""
    async with liar(b"", honest_at_first=True) as url, opened(url, []) as line:
        await until_up(line, True)
        for _ in range(3 * MOST_WAITING):
            line.post("SET", "a", "b")
        assert len(line._waiting) <= MOST_WAITING


async def test_a_process_that_is_busy_itself_does_not_blame_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn of its loop takes so long that a round trip, which takes several, is over the time that redis has."""
    monkeypatch.setattr(line_module, "AT_LONGEST_S", SOON_S)
    loop, told, busy = asyncio.get_running_loop(), list[bool](), True

    def work() -> None:
        if busy:
            time.sleep(2 * ANSWER_WITHIN_S / 3)
            loop.call_soon(work)

    with RedisServer() as redis:
        async with opened(redis.url, told) as line:
            assert await line.ask("SET", "key", "value") is not None
            loop.call_soon(work)
            began = loop.time()
            assert await line.ask("GET", "key") == b"value"
            assert loop.time() - began > ANSWER_WITHIN_S
            busy = False
            assert line.up and line.losses == 0 and told == [True]
