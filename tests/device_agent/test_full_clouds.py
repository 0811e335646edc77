"""Where a cloud server has no room: behind its address there may be another one by now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from clouds import Cloud, chain_over, cloud_here, device_hello, greedy, middle_of, remote_middle, rows_in, until
from oracle import oracle_tokens, prompt_for

from device_agent.cloud import further
from device_agent.cloud.remote import RemoteSubmodel
from device_agent.sharing.compute import Compute
from split_model.checkpoint import Checkpoint
from split_model.stack import Span

TOKENS = 24


@dataclass
class Address:
    """One of several cloud servers, with the ends of its connections that devices have."""

    url: str
    devices: list[asyncio.StreamWriter]


@asynccontextmanager
async def one_address(clouds: Iterable[Cloud]) -> AsyncIterator[Address]:
    """An address whose connections go to one of ``clouds`` after the other, as those of a Service do."""
    turns, devices = iter(clouds), list[asyncio.StreamWriter]()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        devices.append(writer)
        there = await asyncio.open_connection("127.0.0.1", int(next(turns).url.rpartition(":")[2]))
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield Address(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}", devices)
    finally:
        server.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further connections that nobody needs are ended soon."""
    monkeypatch.setattr(further, "UNUSED_S", 0.3)
    monkeypatch.setattr(further, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(further, "BACK_S", 0.1)


async def test_answers_go_to_another_cloud_behind_the_same_address(
    tiny: Path, compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that have room for one session each the second answers beside the first, both as transformers do; the
    further connection ends behind it, and is begun again when it is needed."""
    prompts = [prompt_for(tiny, 9, seed) for seed in (1, 2)]
    wanted = [oracle_tokens(tiny, prompt, TOKENS) for prompt in prompts]
    async with (
        cloud_here(tiny, 1, 1, max_sessions=1) as first,
        cloud_here(tiny, 1, 1, max_sessions=1) as second,
        one_address(cycle([first, second])) as address,
        remote_middle(address.url, device_hello(tiny, 1, 1)) as remote,
    ):
        whole = chain_over(tiny, 1, 1, remote, compute, 16)
        computed = [rows_in(cloud, monkeypatch) for cloud in (first, second)]
        for _ in range(2):
            found = await asyncio.gather(*(greedy(whole, list(prompt), TOKENS) for prompt in prompts))
            assert found == wanted and all(computed)
            await until(lambda: len(remote.wires()) == 1 and len(first.server.links) + len(second.server.links) == 1)


async def test_a_session_stays_where_the_link_beside_comes_later(tiny: Path) -> None:
    """The first connection of a device breaks off and comes out at the server of its further one: the session there
    goes on there, never moved; once it is over the further connection, which leads where the first does, ends."""
    rows = torch.randn(6, Checkpoint.open(tiny).spec.hidden_size, generator=torch.Generator().manual_seed(3))
    async with (
        cloud_here(tiny, 1, 1, max_sessions=1) as first,
        cloud_here(tiny, 1, 1) as second,
        one_address(chain([first, second], repeat(second))) as address,
        remote_middle(address.url, device_hello(tiny, 1, 1)) as remote,
    ):
        filling, staying = remote.open(16), remote.open(16)
        await filling.forward(rows, 1)
        found = [await staying.forward(rows[:4], 4)]
        beside, link = remote.clouds.links
        restored = remote.clouds.restored
        assert link.attached and len(second.server.links) == 1
        filling.close()
        address.devices[0].close()
        await until(lambda: len(second.server.links) == 2 and beside.ready)
        await asyncio.sleep(0.3)  # Whether it leads back has been looked at by now.
        found.append(await staying.forward(rows[4:], 2))
        assert link.attached and remote.clouds.restored == restored
        middle = middle_of(tiny)
        torch.testing.assert_close(torch.cat(found), middle.forward(rows, [Span(middle.new_cache(6), 6)]))
        staying.close()
        await until(lambda: len(second.server.links) == 1 and not link.ready)


@asynccontextmanager
async def one_waits(tiny: Path, **limit: Any) -> AsyncIterator[tuple[Cloud, RemoteSubmodel, asyncio.Future[Any]]]:
    """A cloud server that has room for one session, which there is, and another one that waits; behind the block, until
    the first has ended."""
    rows = torch.randn(5, Checkpoint.open(tiny).spec.hidden_size, generator=torch.Generator().manual_seed(3))
    async with (
        cloud_here(tiny, 1, 1, **limit) as cloud,
        remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote,
    ):
        first, second = remote.open(16), remote.open(16)
        await first.forward(rows, 1)
        waiting = asyncio.ensure_future(second.forward(rows, 1))
        yield cloud, remote, waiting
        assert not waiting.done()
        first.close()
        await waiting
        second.close()
        await until(lambda: len(cloud.server.links) == 1)


async def test_a_cloud_that_is_full_alone_is_waited_for(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another connection leads to the same one: it ends at once, and no other is begun for a while; the session has its
    rows when there is room."""
    monkeypatch.setattr(further, "BACK_S", 600.0)
    monkeypatch.setattr(further, "UNUSED_S", 600.0)
    async with one_waits(tiny, max_sessions=1) as (cloud, remote, _):
        await until(lambda: cloud.server._connections == 2 and len(cloud.server.links) == 1)
        await asyncio.sleep(1.0)  # The session has asked again by now.
        assert cloud.server._connections == 2 and not remote.clouds.links[-1].attached


async def test_who_has_all_that_it_may_begins_no_other(tiny: Path) -> None:
    """Of as many sessions as a cloud server allows a connection the next one waits for the first of them to end."""
    async with one_waits(tiny, max_device_sessions=1) as (_, remote, waiting):
        await asyncio.sleep(0.3)  # A further connection would have been begun by now.
        assert len(remote.clouds.links) == 1 and not waiting.done()
