"""Sessions of a cloud server that drains: answered there while their rows go ahead, and then where those are."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from clouds import Cloud, cloud_here, device_hello, middle_of, remote_middle, rows_in, until
from samples import sample
from submodel_conformance import rows

from cloud_server.engine.entries import SessionState
from device_agent.cloud.ahead import FEW_ROWS
from device_agent.cloud.clouds import Clouds
from device_agent.cloud.leaving import LEAST_AT_ONCE, at_once
from device_agent.cloud.session import RemoteSession
from split_model.stack import Span
from wire.message import Drain
from wire.session_messages import DeviceHello

HIDDEN = 32
HELLO = DeviceHello("device", "", "model", "sha256:00", 1, 3, HIDDEN, "float32")


def told_to_leave(cloud: Cloud) -> None:
    """The cloud server tells its devices that it drains, and goes on as before."""
    for link in cloud.server.links.values():
        link.stream.post(Drain(20.0))


def draining(cloud: Cloud) -> asyncio.Task[int]:
    """It drains; how many sessions are left in the end."""
    return asyncio.create_task(cloud.server.drain())


@contextmanager
def computing_nothing(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """Within the block it takes work in and does none; gives that work."""
    held: list[tuple[Any, ...]] = []
    with monkeypatch.context() as holds:
        holds.setattr(cloud.server.engine.sessions.scheduler, "add", lambda *work: held.append(work))
        yield held


def sessions_at(cloud: Cloud) -> int:
    """Sessions that a cloud server has."""
    return len(cloud.server.engine.ledger.entries)


async def expected(tiny: Path, hidden: torch.Tensor) -> torch.Tensor:
    """What the middle layers make of rows."""
    layers = middle_of(tiny)
    return layers.forward(hidden, [Span(layers.new_cache(len(hidden)), len(hidden))])


async def test_it_is_answered_where_it_is_until_its_rows_are_there(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the other cloud server computes nothing the one that drains answers; then the session goes on at the other,
    where no more than the last rows are sent a second time. What is asked for is what the layers give."""
    hidden = rows(130, HIDDEN, 1)
    wanted = await expected(tiny, hidden)
    async with (
        cloud_here(tiny, 1, 1) as first,
        cloud_here(tiny, 1, 1) as second,
        remote_middle([first.url, second.url], device_hello(tiny, 1, 1)) as remote,
    ):
        session = remote.open(130)
        await session.forward(hidden[:100], 1)
        ahead = rows_in(second, monkeypatch)
        with computing_nothing(second, monkeypatch) as held:
            drained = draining(first)
            await until(lambda: held)
            got = [await session.forward(hidden[at : at + 1], 1) for at in range(100, 110)]
            assert sessions_at(first) == 1
        for work in held:
            second.server.engine.sessions.scheduler.add(*work)
        second.server.engine.sessions.work.set()
        got += [await session.forward(hidden[at : at + 1], 1) for at in range(110, 120)]
        await until(lambda: not sessions_at(first))
        got += [await session.forward(hidden[at : at + 1], 1) for at in range(120, 130)]
        torch.testing.assert_close(torch.cat(got), wanted[100:], atol=1e-5, rtol=0)
        await drained
        assert 130 <= sum(ahead) <= 130 + FEW_ROWS
        session.close()
        await until(lambda: not sessions_at(second))


@pytest.mark.parametrize("seed", sample(range(6), "0 1"))
async def test_no_row_changes_however_often_it_moves(tiny: Path, seed: int) -> None:
    """Rows, nodes, paths and ways back, while cloud servers are left for each other, or for themselves, and connections
    are cut in the middle of it: every row is what the layers on this machine give."""
    rng, generator, layers = random.Random(seed), torch.Generator().manual_seed(seed), middle_of(tiny)
    answers: list[tuple[Awaitable[torch.Tensor], torch.Tensor]] = []

    def some(count: int) -> torch.Tensor:
        return torch.randn(count, HIDDEN, generator=generator)

    def asked(session: RemoteSession, line: torch.Tensor) -> torch.Tensor:
        hidden = some(rng.choice([1, 1, 1, 3, 20]))
        line = torch.cat([line, hidden])
        answers.append((session.forward(hidden, 1), line))
        return line

    async with (
        cloud_here(tiny, 1, 1, page_positions=4) as first,
        cloud_here(tiny, 1, 1, page_positions=8, max_rows=16, window_rows=24) as second,
        remote_middle([first.url, second.url], device_hello(tiny, 1, 1)) as remote,
    ):
        sessions = [remote.open(300) for _ in range(3)]
        lines = [torch.empty(0, HIDDEN)] * 3
        for _ in range(80):
            which = rng.randrange(3)
            session, line = sessions[which], lines[which]
            if len(line) > 250 or (len(line) and rng.random() < 0.3):
                line = line[: max(0, len(line) - rng.choice([1, 2, 5, 60]))]
                session.truncate(len(line))
            if rng.random() < 0.2:
                nodes = some(3)
                answers.append((session.forward_nodes(nodes, 1, [-1, -1, 1]), torch.cat([line, nodes[1:]])))
                if rng.random() < 0.5:
                    await answers[-1][0]
                    await asyncio.sleep(rng.choice([0, 0.02]))
                session.keep([1, 2])
                line = torch.cat([line, nodes[1:]])
            lines[which] = asked(session, line)
            if rng.random() < 0.6:
                await answers[-1][0]
            if rng.random() < 0.15:
                told_to_leave(rng.choice([first, second]))
            if rng.random() < 0.05 and (stream := rng.choice(remote.clouds.links).stream) is not None:
                stream._transport._websocket.transport.abort()  # type: ignore[attr-defined]
            await asyncio.sleep(rng.choice([0, 0, 0.002, 0.03]))
        for got, line in answers:
            wanted = layers.forward(line, [Span(layers.new_cache(len(line)), len(line))])[-1:]
            torch.testing.assert_close(await got, wanted, atol=1e-5, rtol=0)
        for session in sessions:
            session.close()
        await until(lambda: not any(link.sessions for link in remote.clouds.links))


async def test_behind_the_same_address_there_may_be_another(tiny: Path) -> None:
    """A device that knows one address dials it again while the cloud server drains, and moves to what answers there."""
    async with (
        cloud_here(tiny, 1, 1) as first,
        cloud_here(tiny, 1, 1) as second,
        remote_middle(first.url, device_hello(tiny, 1, 1)) as remote,
    ):
        session = remote.open(40)
        await session.forward(rows(20, HIDDEN, 0), 1)
        remote.clouds._urls = [second.url]  # As a Service does it.
        drained = draining(first)
        assert await drained == 0 and sessions_at(second) == 1
        assert remote.connected and not remote.clouds.links[0].draining
        session.close()


async def test_nowhere_to_go(tiny: Path) -> None:
    """Where the only cloud server drains, it answers to the end."""
    hidden = rows(30, HIDDEN, 3)
    async with cloud_here(tiny, 1, 1) as cloud, remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote:
        session = remote.open(30)
        await session.forward(hidden[:20], 1)
        drained = draining(cloud)
        await until(lambda: not remote.connected)
        got = torch.cat([await session.forward(hidden[at : at + 1], 1) for at in range(20, 30)])
        torch.testing.assert_close(got, (await expected(tiny, hidden))[20:], atol=1e-5, rtol=0)
        session.close()
        assert await drained == 0


@pytest.mark.parametrize("told", [True, False], ids=["named to the device", "a stranger"])
async def test_a_cloud_server_may_say_where_to(tiny: Path, told: bool) -> None:
    """Of those that the device was told of; any other address is nothing to it."""
    async with (
        cloud_here(tiny, 1, 1) as second,
        cloud_here(tiny, 1, 1) as third,
        cloud_here(tiny, 1, 1, drain_to=third.url) as first,
        remote_middle([first.url, second.url, *[third.url] * told], device_hello(tiny, 1, 1)) as remote,
    ):
        session = remote.open(60)
        await session.forward(rows(20, HIDDEN, 0), 1)
        assert await draining(first) == 0
        assert (sessions_at(second), sessions_at(third)) == ((0, 1) if told else (1, 0))
        assert third.server._connections == told
        await session.forward(rows(1, HIDDEN, 0), 1)
        session.close()


async def test_a_full_cloud_server_is_asked_again(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile the session stays where it is, and is answered there."""
    monkeypatch.setattr("cloud_server.engine.ledger.RETRY_AFTER_S", 0.05)
    async with (
        cloud_here(tiny, 1, 1) as first,
        cloud_here(tiny, 1, 1, max_device_sessions=1) as second,
        remote_middle([first.url, second.url], device_hello(tiny, 1, 1)) as remote,
    ):
        one, other = remote.open(40), remote.open(40)
        for each in (one, other):
            await each.forward(rows(20, HIDDEN, 0), 1)
        drained = draining(first)
        await until(lambda: sessions_at(first) == 1)
        await asyncio.sleep(0.1)
        await one.forward(rows(1, HIDDEN, 0), 1)
        await other.forward(rows(1, HIDDEN, 0), 1)
        assert (sessions_at(first), sessions_at(second)) == (1, 1)
        one.close()
        await drained
        assert sessions_at(second) == 1
        other.close()


def test_how_many_at_a_time() -> None:
    """Two at first, all of them in the middle of the time that there is, whatever a cloud server says that is."""
    assert [at_once(64, elapsed_s, 20.0) for elapsed_s in (0.0, 0.1, 5.0, 10.0, 19.0)] == [2, 2, 32, 64, 64]
    assert at_once(1, 10.0, 20.0) == 2
    for within_s, expected in ((0.0, 64), (-1.0, 64), (math.nan, 64), (math.inf, 2), (1e300, 2), (5e-324, 64)):
        assert at_once(64, 1.0, within_s) == expected


async def test_a_few_at_a_time(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others stay until those before them have moved, and then all have."""
    count = LEAST_AT_ONCE + 3
    async with (
        cloud_here(tiny, 1, 1) as first,
        cloud_here(tiny, 1, 1) as second,
        remote_middle([first.url, second.url], device_hello(tiny, 1, 1)) as remote,
    ):
        sessions = [remote.open(40) for _ in range(count)]
        await asyncio.gather(*(each.forward(rows(30, HIDDEN, 0), 1) for each in sessions))
        with computing_nothing(second, monkeypatch) as held:
            drained = draining(first)
            await until(lambda: sessions_at(second) == LEAST_AT_ONCE)
            await asyncio.sleep(0.1)
            assert (sessions_at(first), sessions_at(second)) == (count, LEAST_AT_ONCE)
        for work in held:
            second.server.engine.sessions.scheduler.add(*work)
        second.server.engine.sessions.work.set()
        assert await drained == 0 and sessions_at(second) == count
        for each in sessions:
            each.close()


async def test_what_went_ahead_counts_when_the_old_one_dies(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest alone is sent again."""
    hidden = rows(101, HIDDEN, 4)
    async with (
        cloud_here(tiny, 1, 1) as first,
        cloud_here(tiny, 1, 1, max_rows=20, window_rows=40) as second,
        remote_middle([first.url, second.url], device_hello(tiny, 1, 1)) as remote,
    ):
        session = remote.open(101)
        await session.forward(hidden[:100], 1)
        ahead = rows_in(second, monkeypatch)
        scheduler = second.server.engine.sessions.scheduler
        add, held = scheduler.add, list[tuple[Any, ...]]()
        monkeypatch.setattr(scheduler, "add", lambda *work: add(*work) if len(ahead) <= 3 else held.append(work))
        drained = draining(first)
        await until(lambda: held)
        monkeypatch.setattr(scheduler, "add", add)
        stream = remote.clouds.links[0].stream
        assert stream is not None
        stream._transport._websocket.transport.abort()  # type: ignore[attr-defined]
        got = await session.forward(hidden[100:], 1)
        torch.testing.assert_close(got, (await expected(tiny, hidden))[100:], atol=1e-5, rtol=0)
        assert sum(ahead) <= 101 + 40
        session.close()
        await drained


async def test_what_went_ahead_and_is_not_there_yet_is_given_up_when_the_old_one_dies(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is sent again, in one session: of the other nothing is left that would take its room until it is idle."""
    hidden = rows(101, HIDDEN, 4)
    async with (
        cloud_here(tiny, 1, 1, resume_s=0.0) as first,
        cloud_here(tiny, 1, 1) as second,
        remote_middle([first.url, second.url], device_hello(tiny, 1, 1), 120.0) as remote,
    ):
        session = remote.open(101)
        await session.forward(hidden[:100], 1)
        with computing_nothing(second, monkeypatch) as held:
            drained = draining(first)
            await until(lambda: held)
        stream = remote.clouds.links[0].stream
        assert stream is not None
        stream._transport._websocket.transport.abort()  # type: ignore[attr-defined]
        got = await session.forward(hidden[100:], 1)
        torch.testing.assert_close(got, (await expected(tiny, hidden))[100:], atol=1e-5, rtol=0)
        await until(lambda: sessions_at(second) == 1)
        session.close()
        await until(lambda: not sessions_at(second))
        await drained


async def test_parked_sessions_are_not_moved(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for them: their rows are sent when a next turn comes. One that parks while its rows go ahead has
    nothing left anywhere."""
    async with (
        cloud_here(tiny, 1, 1) as first,
        cloud_here(tiny, 1, 1) as second,
        remote_middle([first.url, second.url], device_hello(tiny, 1, 1)) as remote,
    ):
        parked, parks = remote.open(40), remote.open(40)
        for each in (parked, parks):
            await each.forward(rows(20, HIDDEN, 0), 1)
        parked.park()
        await until(lambda: first.server.engine.ledger.count(SessionState.PARKED))
        with monkeypatch.context() as holds:
            holds.setattr(second.server.engine.sessions.scheduler, "add", lambda *work: None)
            drained = draining(first)
            await until(lambda: sessions_at(second))
            await asyncio.sleep(0.05)
            assert sessions_at(second) == 1
            parks.park()
            assert await drained == 0
            await until(lambda: not sessions_at(second))
        for count, each in enumerate((parked, parks), 1):
            await each.forward(rows(1, HIDDEN, 0), 1)
            assert sessions_at(second) == count
        for each in (parked, parks):
            each.close()


async def test_one_that_drains_and_stays_collects_no_connections(tiny: Path) -> None:
    """Once its sessions have gone, and another connection is in its place, the device ends the one before."""
    async with cloud_here(tiny, 1, 1) as cloud, remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote:
        session = remote.open(40)
        await session.forward(rows(20, HIDDEN, 0), 1)
        for _ in range(3):
            told_to_leave(cloud)
            await until(lambda: not remote.connected)
            await until(lambda: remote.connected and len(cloud.server.links) == 1)
        assert cloud.server._connections == 4
        await session.forward(rows(1, HIDDEN, 0), 1)
        session.close()


async def test_a_successor_that_drains_at_once_has_one_in_turn() -> None:
    """It may be told to leave before it has taken the place of the one before, and is gone when that is."""
    clouds = Clouds(["ws://127.0.0.1:9"], HELLO, may_pack=False)
    [first] = clouds.links
    first.stream = object()  # type: ignore[assignment]
    first.drains.set()
    begun = [*clouds._succeed()]
    second = clouds._next[0]
    second.drains.set()
    begun += clouds._succeed()
    assert clouds.links == [first], "it is not there any more"
    first.stream = None
    clouds._told.clear()
    begun += clouds._succeed()
    assert clouds.links == [second] and clouds._told.is_set(), "nobody would look again"
    begun += clouds._succeed()
    assert clouds.links[0] not in (first, second) and not clouds.links[0].draining
    for each in begun:
        each.close()
