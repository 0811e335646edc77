"""The cloud server against real devices and hostile ones, over real websockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from bare_devices import HIDDEN, bystanders, device, news, rows
from clouds import cloud_here, device_hello, until
from structlog.typing import EventDict
from websockets.asyncio.client import connect

from cloud_server.app import measured
from cloud_server.device_link import TIMINGS, DeviceLink
from cloud_server.engine.entries import SessionState
from cloud_server.engine.ledger import Ledger
from cloud_server.schedule.chunk_model import Conditions
from cloud_server.schedule.chunk_search import schedule
from wire.errors import REPLAYABLE, Code, ConnectionFailed
from wire.frames import Frame, encode
from wire.message import Failed
from wire.session_messages import (
    Close,
    Forward,
    LinkState,
    Open,
    Result,
    Timing,
    Truncate,
)


@pytest.fixture
async def turns() -> AsyncIterator[Callable[[], int]]:
    """How often the event loop has let everybody go on so far."""
    count = 0

    async def tick() -> None:
        nonlocal count
        while True:
            count += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    yield lambda: count
    ticking.cancel()


async def test_many_frames_of_one_device_hold_nobody_up(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, turns: Callable[[], int]
) -> None:
    """However many have come already, others have their turn after every bit of work."""
    handled: Counter[int] = Counter()
    handle = DeviceLink._handle

    async def counted(link: DeviceLink, frame: Frame) -> None:
        handled[turns()] += 1
        await handle(link, frame)

    monkeypatch.setattr(DeviceLink, "_handle", counted)
    monkeypatch.setattr("cloud_server.device_link.TURN_S", 0.0)
    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as stream:
        for session in range(300):
            stream.post(Open(session, 6000, prompt=5000))
            stream.post(Close(session))
        await until(lambda: handled.total() == 600)
    assert max(handled.values()) == 1


async def test_what_advice_goes_by(tiny: Path) -> None:
    """What steps take as it is known, and the rows of others where there are others."""
    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as stream:
        engine, load = cloud.server.engine, cloud.server.engine.pace.load
        load.observe(7, 0.1)
        alone = engine.conditions(1e6)
        assert (alone.g(7), alone.mu) == (0.1, 0.0)
        for session in range(2):
            stream.post(Open(session, 200, prompt=100))
        await until(lambda: engine.ledger.count(SessionState.OPEN) == 2)
        beside = engine.conditions(1e6)
        assert (beside.g(7), beside.mu) == (0.1, 7.0)


async def test_all_devices_are_advised_a_little_at_a_time(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, turns: Callable[[], int]
) -> None:
    """When conditions change for everybody, others have their turn between two schedules; sessions are counted once."""
    scheduled: Counter[int] = Counter()
    counts = []
    count = Ledger.count

    def counted(conditions: Conditions, prompt: int) -> list[int]:
        scheduled[turns()] += 1
        return schedule(conditions, prompt)

    def count_counted(ledger: Ledger, state: SessionState) -> int:
        counts.append(ledger)
        return count(ledger, state)

    monkeypatch.setattr("cloud_server.server.LOOK_EVERY_S", 60.0)
    monkeypatch.setattr("cloud_server.server.TURN_S", 0.0)
    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as one, device(cloud, tiny) as other:
        for stream in (one, other):
            for session in range(4):
                stream.post(Open(session, 2000, prompt=1500))
            stream.post(LinkState(10**5, 0))
        await until(lambda: all(link.measured.up_bytes_s for link in cloud.server.links.values()))
        monkeypatch.setattr("cloud_server.schedule.chunk_advice.schedule", counted)
        monkeypatch.setattr(Ledger, "count", count_counted)
        await cloud.server.look_again()
        assert scheduled.total() == 8
        assert max(scheduled.values()) == 1 and len(counts) == 1


async def test_a_device_cannot_fill_the_metrics(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the times that a device reports faster than devices do, some are left out; later ones count again."""
    monkeypatch.setattr("cloud_server.server.LOOK_EVERY_S", 60.0)

    def counted() -> int:
        (line,) = (each for each in measured(cloud.server).decode().splitlines() if "latency_seconds_count" in each)
        return int(float(line.split()[-1]))

    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as stream:
        for _ in range(10 * TIMINGS):
            stream.post(Timing([], [1000, 2000]))
        stream.post(LinkState(10**6, 0))
        (link,) = cloud.server.links.values()
        await until(lambda: link.measured.up_bytes_s)
        assert counted() == 2 * TIMINGS
        await cloud.server.look_again()
        stream.post(Timing([], [1000]))
        await until(lambda: counted() == 2 * TIMINGS + 1)


async def test_logs_are_not_for_devices_to_fill(tiny: Path) -> None:
    """At the usual level strangers and frames that are refused leave no line, and nobody's own words are written."""
    told: list[dict[str, Any]] = []

    def keep(logger: object, method: str, event: EventDict) -> EventDict:
        told.append({**event, "level": method})
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[keep], cache_logger_on_first_use=False)
    try:
        async with cloud_here(tiny, 1, cloud_token="s") as cloud:
            with pytest.raises(ConnectionFailed):
                async with device(cloud, tiny, credential="guess"):
                    pass
            async with device(cloud, tiny, credential="s") as stream:
                for session in range(5):
                    stream.post(Truncate(session, 3))
                    assert isinstance(await news(stream), Failed)
                stream.post(Open(9, 8))
                stream.post(Forward(9, 0, 0, 0), [rows(2, fill=float("nan"))])
                assert isinstance(await news(stream), Failed)
                stream.post(Failed("internal", "words of a stranger"))
                await until(lambda: not cloud.server.links)
    finally:
        structlog.configure(**before)
    events = [each["event"] for each in told if each["level"] != "debug"]
    assert events == ["warmed up", "device connected", "device gone"]
    assert "words of a stranger" not in str(told) and "session ended" in str(told)


async def test_state_and_metrics(tiny: Path) -> None:
    """People and Prometheus see the same counts."""
    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as stream:
        http = cloud.url.replace("ws", "http", 1)
        stream.post(Open(1, 50))
        stream.post(Forward(1, 0, 0, 1), [rows(7)])
        await news(stream)
        async with httpx.AsyncClient(trust_env=False) as client:
            state = (await client.get(http + "/state")).json()
            metrics = (await client.get(http + "/metrics")).text
        session = {"connection": 1, "session": 1, "state": "open", "position": 7, "pages": 1}
        assert state["sessions"] == [session] and state["pages"]["used"] == 1
        assert state["layers"] == [1, 4] and state["devices"][0]["name"] == "test device"
        assert (
            "trilby_cloud_num_requests_running 1.0" in metrics
            and "trilby_cloud_iteration_tokens_total_sum 7.0" in metrics
        )


async def test_bytes_of_all_devices_are_counted(tiny: Path) -> None:
    """Those of devices that are there and of those that have gone, whenever somebody looks."""

    def counted() -> list[float]:
        server = cloud.server
        measured(server)
        return [next(iter(each.collect())).samples[0].value
                for each in (server.engine.metrics.received_bytes, server.engine.metrics.sent_bytes)]  # fmt: skip

    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as first:
        async with device(cloud, tiny, name="other device") as second:
            streams = [first, second]
            for number, stream in enumerate(streams):
                stream.post(Open(1, 50))
                stream.post(Forward(1, 0, 0, 3), [rows(5 + number)])
                await news(stream)
                counted()
        await until(lambda: len(cloud.server.links) == 1)
        received, sent = counted()
        assert received >= sum(stream.sent_bytes for stream in streams) > (5 + 6) * HIDDEN * 4
        assert sent >= sum(stream.received_bytes for stream in streams) > (3 + 3) * HIDDEN * 4
        assert received + sent < sum(stream.sent_bytes + stream.received_bytes for stream in streams) + 200


async def test_truncate_forward_and_close_at_once_leave_the_engine_running(tiny: Path) -> None:
    """Whatever a session asks for while a step runs, even under a number that is closed and opened again."""
    async with cloud_here(tiny, 1) as cloud, bystanders(cloud, tiny), device(cloud, tiny) as stream:
        for _ in range(60):
            stream.post(Open(1, 64))
            stream.post(Forward(1, 0, 0, 0), [rows(64)])
            stream.post(Truncate(1, 0))
            stream.post(Forward(1, 1, 0, 0), [rows(64)])
            stream.post(Close(1))
            await asyncio.sleep(0.002)
        stream.post(Open(2, 8))
        stream.post(Forward(2, 0, 0, 1), [rows(2)])
        while not isinstance((message := await news(stream)), Result) or message.session != 2:
            pass
        assert cloud.server.engine.alive


async def test_a_step_that_breaks_ends_its_sessions_only(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error nobody foresaw is internal for those in the step; the next step runs, and /health stays fine."""
    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as stream:
        with monkeypatch.context() as broken:
            broken.setattr("cloud_server.stages.layer_step.PagedBatch", lambda *_: 1 / 0)
            stream.post(Open(1, 8))
            stream.post(Forward(1, 0, 0, 1), [rows(2)])
            failed = await news(stream)
        assert isinstance(failed, Failed) and failed.code == Code.INTERNAL.value
        stream.post(Open(2, 8))
        stream.post(Forward(2, 0, 0, 1), [rows(2)])
        assert isinstance(await news(stream), Result)
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(cloud.url.replace("ws", "http", 1) + "/health")).status_code == 200


async def test_a_device_that_does_not_read_harms_nobody(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers pile up to the limit, its connection ends, and the engine goes on for the others."""
    monkeypatch.setattr("wire.stream.MAX_QUEUED_BYTES", 20_000)
    hello = encode(device_hello(tiny, 1, 0))
    async with cloud_here(tiny, 1) as cloud, bystanders(cloud, tiny):
        socket = await connect(cloud.url + "/device", compression=None, max_queue=1)
        await socket.send(hello)
        await until(lambda: len(cloud.server.links) == 2)
        link = next(link for link in cloud.server.links.values() if link.connection == max(cloud.server.links))
        link.stream._transport.send = lambda data: asyncio.sleep(60)  # type: ignore[method-assign]
        for session in range(1, 20):
            await socket.send(encode(Open(session, 64), (), 2 * session - 1))
            await socket.send(encode(Forward(session, 0, 0, 64), [rows(64)], 2 * session))
        await until(lambda: len(cloud.server.links) == 1)
        assert cloud.server.engine.alive
        socket.transport.abort()  # A close would wait for what nobody reads.


async def test_answers_that_a_slow_device_does_not_fetch_end_their_session(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those for which there is no room any more; its connection and its other sessions go on."""
    async with cloud_here(tiny, 1) as cloud, bystanders(cloud, tiny), device(cloud, tiny) as stream:
        link = cloud.server.links[max(cloud.server.links)]
        there = link.stream
        may_leave, send = asyncio.Event(), there._transport.send

        async def slow(data: bytearray) -> None:
            await may_leave.wait()
            await send(data)

        monkeypatch.setattr(there._transport, "send", slow)
        monkeypatch.setattr(there._out, "takes", lambda size, party: there.queued_bytes + size <= 100_000)
        for session in (1, 2, 3):
            stream.post(Open(session, 600))
            stream.post(Forward(session, 0, 0, 500), [rows(500)])
        await until(lambda: link._ended)
        may_leave.set()
        told = [await news(stream) for _ in range(3)]
        assert {type(each) for each in told} == {Failed, Result}
        failed = next(each for each in told if isinstance(each, Failed))
        assert failed.code == Code.PREEMPTED.value and Code.PREEMPTED in REPLAYABLE
        left = next(each for each in told if isinstance(each, Result))
        stream.post(Forward(left.session, 1, 500, 1), [rows(1)])
        assert isinstance(await news(stream), Result)
