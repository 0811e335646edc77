"""The whole agent in one process, from its start to its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from checkpoints import DEMO
from clouds import cloud_here, until
from oracle import oracle_tokens, prompt_for

from device_agent.answering.answer import answer
from device_agent.build import build
from device_agent.config import DeviceConfig
from wire.messages import AnyMessage
from wire.request_messages import Delta, Generate, Sampling


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


async def test_what_a_request_leaves_out_is_the_models_own(tmp_path: Path) -> None:
    """A penalty for repetitions that the model's files have: greedy answers are those of transformers' ``generate``,
    drafted or not, and without it where the request says so."""
    for file in DEMO.iterdir():
        if file.name != "generation_config.json":
            (tmp_path / file.name).symlink_to(file)
    usual = json.loads((DEMO / "generation_config.json").read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps({**usual, "repetition_penalty": 1.3}))
    prompt, tokens = prompt_for(DEMO, 40), 30
    with_it, without = oracle_tokens(tmp_path, prompt, tokens), oracle_tokens(DEMO, prompt, tokens)
    assert with_it != without
    device = build(DeviceConfig(model=str(tmp_path), mode="local", gateway="ws://127.0.0.1:9"))
    try:
        for draft in ("", "none"):
            for left_out, wanted in ((["repetition_penalty", "top_p"], with_it), ([], without)):
                said = list[AnyMessage]()
                request = Generate(
                    1, "id", "demo", "", list(prompt), 1, tokens, ignore_eos=True, draft=draft, left_out=left_out,
                    sampling=Sampling(temperature=0.0), return_token_ids=True,
                )  # fmt: skip
                await answer(device.writer, request, said.append)
                assert [id for each in said if isinstance(each, Delta) for id in each.ids or ()] == wanted
    finally:
        device.stop()
