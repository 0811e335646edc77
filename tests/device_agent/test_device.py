"""The whole agent in one process, from its start to its end."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from checkpoints import DEMO
from clouds import cloud_here, until
from oracle import prompt_for

from device_agent.answering.answer import answer
from device_agent.build import build
from device_agent.config import DeviceConfig
from wire.messages import AnyMessage
from wire.request_messages import Generate, Sampling


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_device_that_stops_leaves_nothing_in_the_cloud(number: signal.Signals) -> None:
    """The conversations it has parked are closed there, although a connection that is only lost would keep them."""
    async with cloud_here(DEMO, 2, resume_s=60.0) as cloud:
        device = build(DeviceConfig(model=str(DEMO), gateway="ws://127.0.0.1:9", cloud=(cloud.url,)))
        running = asyncio.create_task(device.run())
        await until(device.agent._cloud_connected)
        entries, said = cloud.server.engine.ledger.entries, list[AnyMessage]()
        prompt, sampling = list(prompt_for(DEMO, 40)), Sampling(temperature=0.0)
        await answer(device.writer, Generate(1, "id", "demo", "", prompt, 1, 4, sampling=sampling), said.append)
        await until(lambda: [entry.state.value for entry in entries.values()] == ["parked"])
        os.kill(os.getpid(), number)
        await asyncio.wait_for(running, 20)
        await until(lambda: not entries, 30)
