"""Requests to read at an agent: tenants by turns, nothing left of one that was given up, broken numbers refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clouds import until
from reading_models import text_model

from device_agent.answering.reading import ServedReader, read
from device_agent.build import build
from device_agent.config import DeviceConfig
from wire.errors import Code, SessionFailed
from wire.messages import AnyMessage
from wire.reading_messages import Read, Vector
from wire.request_messages import Accepted, Done


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ServedReader]:
    device = build(DeviceConfig(model=str(text_model("bert", tmp_path)), mode="local", device="cpu"))
    assert isinstance(device.model, ServedReader)
    yield device.model
    device.stop()


def much(number: int, tenant: str) -> Read:
    """A request of eight portions."""
    return Read(number, "id", "m", "embed", ids=[[7] * 64] * 64, first=0, tenant=tenant)


def one(number: int, tenant: str) -> Read:
    return Read(number, "id", "m", "embed", ids=[[7]], tenant=tenant)


async def test_who_asks_for_little_does_not_wait_for_who_asks_for_much(model: ServedReader) -> None:
    """Between two portions of one tenant's it is the other's turn."""
    said: list[AnyMessage] = []
    reading = [asyncio.create_task(read(model, much(number, "greedy"), said.append)) for number in range(4)]
    await until(lambda: any(isinstance(each, Vector) for each in said))
    mine: list[AnyMessage] = []
    await read(model, one(9, "modest"), mine.append)
    assert [type(each) for each in mine] == [Accepted, Vector, Done]
    assert sum(isinstance(each, Vector) for each in said) < 3 * 64
    await asyncio.gather(*reading)
    assert sum(isinstance(each, Vector) for each in said) == 4 * 64


async def test_what_is_given_up_leaves_nothing_behind(model: ServedReader) -> None:
    """Its permit is free, and its portions that are left are not read."""
    said: list[AnyMessage] = []
    reading = [asyncio.create_task(read(model, much(number, "t"), said.append)) for number in range(8)]
    await until(lambda: any(isinstance(each, Vector) for each in said))
    for each in reading:
        each.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    told = len(said)
    await until(lambda: model.reader.compute.queue.idle)
    assert len(said) == told and not any(isinstance(each, Done) for each in said)
    assert model.permits.waiting == 0
    await read(model, one(9, "t"), said.append)
    assert isinstance(said[-1], Done)


async def test_what_gives_no_numbers_ends_its_request_alone(model: ServedReader) -> None:
    """A model whose weights are broken in one place, say; others are answered."""
    reader: Any = model.reader
    reader.embedding._embedding.weight[8] = float("nan")
    with pytest.raises(SessionFailed) as failed:
        await read(model, Read(1, "id", "m", "embed", ids=[[8]]), lambda message: None)
    assert failed.value.code is Code.NOT_FINITE
    said: list[AnyMessage] = []
    await read(model, one(2, ""), said.append)
    assert isinstance(said[-1], Done)


async def test_it_does_only_what_it_can(model: ServedReader) -> None:
    """The gateway asks for nothing else, but it may know an older agent of this name."""
    with pytest.raises(SessionFailed, match="something else"):
        await read(model, Read(1, "id", "m", "classify", ids=[[8]]), lambda message: None)
    with pytest.raises(SessionFailed, match="nothing to read"):
        await read(model, Read(1, "id", "m", "embed"), lambda message: None)
