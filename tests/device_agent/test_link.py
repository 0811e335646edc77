"""The way to one cloud server: how much is put on it at once, what ends it, and who is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from clouds import Cloud, cloud_here, device_hello, remote_middle, until
from submodel_conformance import rows

from device_agent.cloud.bandwidth import SHORT_BYTES
from device_agent.cloud.chunks import DEFAULT_CHUNK
from device_agent.cloud.keeping import connection
from device_agent.cloud.link import CloudLink
from device_agent.cloud.recovery import MAX_LOSSES
from device_agent.cloud.remote import RemoteSubmodel
from split_model.hints import Pace
from wire.errors import Code, ConnectionFailed, SessionFailed
from wire.frames import Tensor
from wire.limits import PACK_BELOW_BYTES_S, PACK_BYTES
from wire.messages import AnyMessage
from wire.outbox import Outgoing
from wire.session_messages import Advice, Forward, Open, Resume

NOBODY = "ws://127.0.0.1:9/device"


def watched(
    link: CloudLink, monkeypatch: pytest.MonkeyPatch, then: Callable[[AnyMessage], Any] = lambda message: None
) -> list[tuple[AnyMessage, int]]:
    """What is posted from now on, with the rows it carries; ``then`` is called after each."""
    seen: list[tuple[AnyMessage, int]] = []
    post = link.post

    def posted(message: AnyMessage, tensors: Any = (), left: Any = None) -> Outgoing:
        entry = post(message, tensors, left)
        first: list[Tensor] = list(tensors)
        seen.append((message, first[0].shape[0] if first else 0))
        then(message)
        return entry

    monkeypatch.setattr(link, "post", posted)
    return seen


def cut(link: CloudLink) -> None:
    """Break the connection off, as a network does."""
    assert link.stream is not None
    link.stream._transport._websocket.transport.abort()  # type: ignore[attr-defined]


async def away(link: CloudLink) -> str:
    """Cut it for good; its address, to bring it back."""
    url, link.url = link.url, NOBODY
    cut(link)
    await until(lambda: not link.ready)
    return url


def moved_to(remote: RemoteSubmodel) -> list[int]:
    """Sessions at each cloud server."""
    return [len(link.sessions) for link in remote.clouds.links]


@asynccontextmanager
async def two_clouds(tiny: Path) -> AsyncIterator[tuple[tuple[Cloud, Cloud], RemoteSubmodel]]:
    """Two cloud servers, and their layers as a submodel that prefers the first."""
    async with (
        cloud_here(tiny, 1, 1) as first,
        cloud_here(tiny, 1, 1) as second,
        remote_middle([first.url, second.url], device_hello(tiny, 1, 1)) as remote,
    ):
        yield (first, second), remote


async def test_many_replays_at_once_do_not_drown_the_link(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More history than may ever be queued moves to another cloud in one go, each session attached there once."""
    monkeypatch.setattr("wire.stream.MAX_QUEUED_BYTES", 256 * 2**10)
    monkeypatch.setattr("device_agent.cloud.link.CROWDED_BYTES", 16 * 2**10)
    async with two_clouds(tiny) as (_, remote):
        sessions = [remote.open(1001) for _ in range(6)]
        for begin in range(0, 1000, 250):
            for session in sessions:
                await session.forward(rows(250, 32, begin), 0)
        seen = watched(remote.clouds.links[1], monkeypatch)
        assert sum(session.nbytes for session in sessions) > 2 * 256 * 2**10
        await away(remote.clouds.links[0])
        answers = await asyncio.gather(*(session.forward(rows(1, 32, 7), 1) for session in sessions))
        for answer in answers:
            torch.testing.assert_close(answer, answers[0], atol=1e-5, rtol=0)
        assert sum(isinstance(message, Open) for message, _ in seen) == len(sessions)
        for session in sessions:
            session.close()


async def test_a_decode_row_goes_while_long_frames_wait(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowded link holds chunks back, not somebody's next token; what is held goes when there is room."""
    async with cloud_here(tiny, 1, 1) as cloud, remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote:
        link = remote.clouds.links[0]
        prefill, decode = remote.open(400), remote.open(400)
        await decode.forward(rows(10, 32, 0), 1)
        with monkeypatch.context() as crowded:
            crowded.setattr("device_agent.cloud.link.CROWDED_BYTES", -(2**30))
            waits = prefill.forward(rows(300, 32, 1), 1)
            assert (await decode.forward(rows(1, 32, 2), 1)).shape == (1, 32)
            assert not waits.done() and link.held
        assert (await waits).shape == (1, 32)
        for session in (prefill, decode):
            session.close()
        assert not link.sessions


async def test_history_goes_in_chunks(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the size the cloud advises, since its whole largest forward may be more than a slow link sends in time."""
    async with two_clouds(tiny) as (_, remote):
        for advised in (None, 50):
            session = remote.open(600)
            await session.forward(rows(512, 32, 0), 0)
            assert moved_to(remote) == [1, 0]
            remote.clouds.links[1].chunk = advised
            seen = watched(remote.clouds.links[1], monkeypatch)
            url = await away(remote.clouds.links[0])
            await session.forward(rows(1, 32, 1), 1)
            assert max(count for _, count in seen) == (advised or DEFAULT_CHUNK)
            assert sum(count for _, count in seen) == 513
            session.close()
            remote.clouds.links[0].url = url
            await until(lambda: remote.clouds.links[0].ready)


async def test_time_for_an_answer_runs_from_when_the_rows_have_left(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow link is not taken for a cloud that does not answer; a cloud that does not is noticed."""
    async with (
        cloud_here(tiny, 1, 1) as cloud,
        remote_middle(cloud.url, device_hello(tiny, 1, 1), reply_within_s=1.0) as remote,
    ):
        monkeypatch.setattr("device_agent.cloud.keeping.LOOK_EVERY_S", 0.05)
        stream = remote.clouds.links[0].stream
        assert stream is not None
        may_leave, send = asyncio.Event(), stream._transport.send

        async def slow(data: bytearray) -> None:
            await may_leave.wait()
            await send(data)

        session = remote.open(40)
        await session.forward(rows(1, 32, 0), 1)
        monkeypatch.setattr(stream._transport, "send", slow)
        waits = session.forward(rows(20, 32, 0), 1)
        await asyncio.sleep(2.0)
        assert not waits.done()
        may_leave.set()
        assert (await waits).shape == (1, 32)
        monkeypatch.setattr(cloud.server.engine.sessions.scheduler, "add", lambda *work: None)
        with pytest.raises(SessionFailed) as failed:
            await session.forward(rows(1, 32, 0), 1)
        assert failed.value.code is Code.TIMEOUT
        session.close()


async def test_what_fails_in_looking_after_sessions_ends_the_connection(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would ever be overdue without it; the next connection serves the sessions."""
    monkeypatch.setattr("device_agent.cloud.keeping.LOOK_EVERY_S", 0.05)
    async with cloud_here(tiny, 1, 1) as cloud, remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote:
        link, session = remote.clouds.links[0], remote.open(4)
        await session.forward(rows(1, 32, 0), 1)
        seen = watched(link, monkeypatch)
        with monkeypatch.context() as broken:
            broken.setattr(link, "tell", lambda: 1 / 0)
            await until(lambda: not link.sessions)
        await until(lambda: link.ready)
        assert (await session.forward(rows(1, 32, 1), 1)).shape == (1, 32)
        assert sum(isinstance(message, Resume) for message, _ in seen) == 1
        session.close()


@pytest.mark.parametrize("nothing", ["rows", "window_rows"])
async def test_a_cloud_that_takes_no_rows_is_refused(tiny: Path, nothing: str) -> None:
    """By its welcome, before a session would send it empty pieces for ever."""
    async with cloud_here(tiny, 1, 1) as cloud:
        object.__setattr__(cloud.server.engine.ledger.limits, nothing, 0)
        link = CloudLink(cloud.url, device_hello(tiny, 1, 1), asyncio.Event())
        with pytest.raises(ConnectionFailed) as failed:
            await asyncio.wait_for(connection(link), 60)
        assert failed.value.code is Code.UNEXPECTED_MESSAGE and not link.ready


async def test_a_session_fits_where_it_goes(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cloud with fewer positions than it has is passed over; one that takes fewer rows at once gets fewer, whatever
    the cloud took that it was opened for."""
    async with (
        cloud_here(tiny, 1, 1, max_rows=7) as narrow,
        cloud_here(tiny, 1, 1, max_model_len=32) as short,
        cloud_here(tiny, 1, 1) as wide,
        remote_middle([narrow.url, short.url, wide.url], device_hello(tiny, 1, 1)) as remote,
    ):
        session = remote.open(100, 50, 60)
        assert remote.max_rows == 7
        for begin in range(0, 35, 7):
            await session.forward(rows(7, 32, begin), 0)
        url = await away(remote.clouds.links[0])
        await until(lambda: remote.max_rows > 7)
        assert (await session.forward(rows(20, 32, 1), 1)).shape == (1, 32)
        assert moved_to(remote) == [0, 0, 1]
        remote.clouds.links[0].url = url
        await until(lambda: remote.clouds.links[0].ready)
        assert remote.max_rows == 7
        assert (await session.forward(rows(20, 32, 1), 1)).shape == (1, 32), "it is still at the wide one"
        seen = watched(remote.clouds.links[0], monkeypatch)
        await away(remote.clouds.links[2])
        assert (await session.forward(rows(20, 32, 1), 1)).shape == (1, 32)
        assert max(count for _, count in seen) == 7 and sum(count for _, count in seen) == 95
        session.close()


async def test_a_cloud_whose_stages_do_not_come_back_is_left_for_an_idle_one(tiny: Path) -> None:
    """At once, not when the time to recover is over."""
    async with two_clouds(tiny) as ((first, _), remote):
        session = remote.open(40)
        await session.forward(rows(20, 32, 0), 1)
        engine = first.server.engine
        engine.sessions.end(
            next(iter(engine.ledger.entries)), SessionFailed(Code.STAGE_LOST, "why", retry_after_s=30.0)
        )
        assert (await asyncio.wait_for(session.forward(rows(1, 32, 1), 1), 15)).shape == (1, 32)
        assert moved_to(remote) == [0, 1]
        session.close()


async def test_rows_that_kill_every_cloud_stop_at_a_few(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when their history is replayed and answered each time before they do it."""
    async with two_clouds(tiny) as ((first, second), remote):
        killed = 0
        session = remote.open(40)
        await session.forward(rows(20, 32, 0), 1)

        def dies_of(cloud: Cloud) -> None:
            sessions, queue = cloud.server.engine.sessions, cloud.server.engine.sessions.queue

            def poisoned(forward: Any, hidden: Any) -> None:
                nonlocal killed
                if forward.want:
                    killed += 1
                    for link in remote.clouds.links:
                        if link.sessions:
                            cut(link)
                else:
                    queue(forward, hidden)

            monkeypatch.setattr(sessions, "queue", poisoned)

        dies_of(first)
        dies_of(second)
        with pytest.raises(SessionFailed) as failed:
            await session.forward(rows(1, 32, 1), 1)
        assert failed.value.code is Code.UPSTREAM_LOST
        assert killed == MAX_LOSSES
        session.close()


async def test_the_cloud_that_keeps_it_gets_it_back(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than the one that is preferred and would need all rows again."""
    async with two_clouds(tiny) as (_, remote):
        url = await away(remote.clouds.links[0])
        session = remote.open(40)
        await session.forward(rows(20, 32, 0), 1)
        remote.clouds.links[0].url = url
        await until(lambda: remote.clouds.links[0].ready)
        seen = watched(remote.clouds.links[1], monkeypatch)
        cut(remote.clouds.links[1])
        await until(lambda: not remote.clouds.links[1].sessions)
        await until(lambda: remote.clouds.links[1].ready)
        await session.forward(rows(1, 32, 1), 1)
        assert [type(message) for message, _ in seen] == [Resume, Forward]
        session.close()


async def test_what_was_given_up_while_parked_comes_back_without_any_time_to_recover(tiny: Path) -> None:
    """A cloud is there: there is nothing to wait for."""
    async with (
        cloud_here(tiny, 1, 1) as cloud,
        remote_middle(cloud.url, device_hello(tiny, 1, 1), recover_within_s=0.0) as remote,
    ):
        session = remote.open(100, 20, 30)
        await session.forward(rows(20, 32, 0), 1)
        session.park()
        engine = cloud.server.engine
        await until(lambda: any(entry.state.value == "parked" for entry in engine.ledger.entries.values()))
        engine.sessions.end(next(iter(engine.ledger.entries)), SessionFailed(Code.EVICTED, "why"))
        await until(lambda: not remote.clouds.links[0].sessions)
        assert (await session.forward(rows(1, 32, 1), 1)).shape == (1, 32)
        session.close()


async def test_a_draining_cloud_is_left_when_another_comes(tiny: Path) -> None:
    """Also when there was none at the moment it began to drain."""
    async with two_clouds(tiny) as ((first, second), remote):
        session = remote.open(40)
        await session.forward(rows(20, 32, 0), 1)
        url = await away(remote.clouds.links[1])
        draining = asyncio.create_task(first.server.drain())
        await until(lambda: remote.clouds.links[0].draining)
        assert moved_to(remote) == [1, 0]
        remote.clouds.links[1].url = url
        await draining
        await session.forward(rows(1, 32, 1), 1)
        assert moved_to(remote) == [0, 1] and len(second.server.engine.ledger.entries) == 1
        session.close()


async def test_a_session_that_leaves_does_not_stop_the_measuring(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed with a long frame unanswered, while others go on one frame at a time."""
    async with cloud_here(tiny, 1, 1) as cloud, remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote:
        pace = remote.clouds.links[0].pace
        stream = remote.clouds.links[0].stream
        assert stream is not None
        stream._connection.rtt_s = 0.0
        gone, stays = remote.open(400), remote.open(2000)
        gone.forward(rows(300, 32, 0), 1)
        gone.close()
        for begin in range(4):
            await stays.forward(rows(300, 32, begin), 1)
        assert pace.pace.up_bytes_s is not None
        stays.close()


async def test_advice_comes_to_the_link(tiny: Path) -> None:
    """The size for any prompt, which history is cut by too, is at least one row."""
    async with cloud_here(tiny, 1, 1) as cloud, remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote:
        next(iter(cloud.server.links.values())).stream.post(Advice([0]))
        await until(lambda: remote.chunk == 1)


def test_what_is_packed(tiny: Path) -> None:
    """While the link is not known, frames that measure it; on a slow one all but the shortest; where it seems fast
    because rows are packed, they go on to be; on one that is faster than that none, and none where it is forbidden."""
    link = CloudLink(NOBODY, device_hello(tiny, 1, 1), asyncio.Event())
    assert not link.pace.packs(SHORT_BYTES) and link.pace.packs(SHORT_BYTES + 1)

    def measured(bytes_s: float) -> None:
        link.pace.pace = Pace(None, bytes_s, None)

    measured(0.9 * PACK_BELOW_BYTES_S)
    assert link.pace.packs(PACK_BYTES) and not link.pace.packs(PACK_BYTES - 1)
    for _ in range(3):
        measured(1.5 * PACK_BELOW_BYTES_S)  # The same link with rows in two thirds of the bytes.
        assert link.pace.packs(PACK_BYTES)
    measured(2.5 * PACK_BELOW_BYTES_S)
    assert not link.pace.packs(10**6)
    measured(1.5 * PACK_BELOW_BYTES_S)
    assert not link.pace.packs(10**6)
    assert not CloudLink(NOBODY, link.hello, asyncio.Event(), may_pack=False).pace.packs(10**6)
