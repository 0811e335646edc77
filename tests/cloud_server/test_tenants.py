"""Devices of several tenants at one cloud server, over real websockets: what one takes, another never misses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import torch
from clouds import Cloud, cloud_here, device_hello, until

from cloud_server.engine.entries import SessionState
from device_agent.build import build
from device_agent.config import DeviceConfig
from service.serve import DEMO
from split_model.tensor_bytes import to_bytes
from wire.connection import Role
from wire.frames import Tensor
from wire.limits import CLOUD_LINK
from wire.message import Failed
from wire.messages import AnyMessage
from wire.session_messages import Advice, Close, CloudWelcome, Forward, Open, Result
from wire.stream import Stream, dial

OPENS = 100
"""As many sessions as the modest tenant opens, one after the other."""


@asynccontextmanager
async def device(cloud: Cloud, path: Path, name: str) -> AsyncIterator[Stream]:
    """A device of that name that has been welcomed."""
    async with dial(cloud.url + "/device", Role.DEVICE, CLOUD_LINK) as stream:
        stream.post(msgspec.structs.replace(device_hello(path, 1, 0), name=name))
        assert isinstance((await stream.receive()).message, CloudWelcome)
        yield stream


async def news(stream: Stream) -> AnyMessage:
    """The next message that is not advice on chunk sizes."""
    while isinstance(message := (await stream.receive()).message, Advice):
        pass
    return message


async def served(stream: Stream, session: int, replayed: bool = False) -> bool:
    """Whether a short session is opened and answered; it is closed again."""
    stream.post(Open(session, 64, prompt=16, replayed=replayed))
    stream.post(Forward(session, 0, 0, 1), [Tensor(*to_bytes(torch.ones(16, 32)))])
    answer = await news(stream)
    assert isinstance(answer, (Result, Failed))
    stream.post(Close(session))
    return isinstance(answer, Result)


@pytest.mark.parametrize("replayed", [False, True])
async def test_who_only_announces_shuts_nobody_out(replayed: bool, tiny: Path) -> None:
    """A device that announces as long prompts as it may on all the sessions it may open, and sends no row, holds no
    page: every session of another device is opened and answered, new ones and replays."""
    async with cloud_here(tiny, 1, kv_mb=1) as cloud, AsyncExitStack() as stack:
        ledger = cloud.server.engine.ledger
        greedy = await stack.enter_async_context(device(cloud, tiny, "greedy"))
        modest = await stack.enter_async_context(device(cloud, tiny, "modest"))
        for session in range(ledger.limits.device_sessions):
            greedy.post(Open(session, ledger.limits.positions, prompt=ledger.limits.positions, replayed=replayed))
        await until(lambda: ledger.entries)
        refused = 0
        for session in range(OPENS):
            refused += not await served(modest, session, replayed=bool(session % 2))
        assert refused == 0, f"{refused} of {OPENS} opens were refused"
        assert ledger.count(SessionState.OPEN) and ledger.pages.used <= 1


async def test_one_tenant_never_takes_the_last_session(tiny: Path) -> None:
    """Four connections of one tenant, each with as many sessions as it may have, leave some to every newcomer."""
    async with cloud_here(tiny, 1) as cloud, AsyncExitStack() as stack:
        ledger = cloud.server.engine.ledger
        for _ in range(4):
            stream = await stack.enter_async_context(device(cloud, tiny, "greedy"))
            for session in range(ledger.limits.device_sessions):
                stream.post(Open(session, 64))
            await served(stream, ledger.limits.device_sessions)
        assert ledger.count(SessionState.OPEN) > 0.8 * ledger.limits.sessions
        for each in range(12):
            stream = await stack.enter_async_context(device(cloud, tiny, f"newcomer {each}"))
            assert await served(stream, 1)


async def test_tenants_are_told_apart(tiny: Path) -> None:
    """Two connections of one name are one tenant, another name is another; operators are still shown the names."""
    async with cloud_here(tiny, 1) as cloud, AsyncExitStack() as stack:
        for name in ("kitchen", "kitchen", "attic"):
            stream = await stack.enter_async_context(device(cloud, tiny, name))
            stream.post(Open(1, 64))
        entries = cloud.server.engine.ledger.entries
        await until(lambda: len(entries) == 3)
        first, second, third = (entries[connection, 1].tenant for connection in (1, 2, 3))
        assert first == second != third
        assert not {"kitchen", "attic"} & {first, third}
        assert [link.name for link in cloud.server.links.values()] == ["kitchen", "kitchen", "attic"]


def test_devices_without_a_name_are_strangers() -> None:
    """Each gets a name of its own, new at every start; one that is given is kept."""
    names = []
    for given in ("", "", "kitchen"):
        made = build(DeviceConfig(model=str(DEMO), draft=("none",), name=given))
        assert made.remote is not None
        names.append(made.agent._hello.name)
        made.stop()
    assert names[2] == "kitchen" and names[0] != names[1]
    assert all(name.startswith("device-") for name in names[:2])
