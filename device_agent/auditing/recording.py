"""Answers to passages of a text, by the device's own code and a cloud server's, and all that passed between the two."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final

from device_agent.agent_process import Device
from device_agent.auditing.cloud_process import AuditFailed, cloud_process
from device_agent.auditing.config import AuditConfig
from device_agent.auditing.tap import Tap
from device_agent.auditing.transcript import Recorded
from device_agent.build import build
from device_agent.config import DeviceConfig
from device_agent.speculative.generation import Generation
from drafting.choosing import Chooser
from service.setting_names import command_line
from split_model.sampling import SamplingParams
from split_model.spec import ModelSpec
from wire.errors import SessionFailed

CONNECT_WITHIN_S: Final = 30.0

STEADY: Final = {"draft_length": "fixed", "prepare": "none", "stream_rows": "off"}
"""How the device drafts here: what is sent then does not depend on how fast the machine is."""


@asynccontextmanager
async def device_on_tap(config: AuditConfig, split: int, spec: ModelSpec) -> AsyncIterator[tuple[Device, Tap]]:
    """A device with ``split`` layers, connected to a cloud server through a tap.

    Raises ``AuditFailed``, and what ``build`` does.
    """
    token, both = secrets.token_hex(16), {"model": config.model, "dtype": config.dtype, "tail": config.tail}
    positions = 2 * (config.prompt_tokens + config.new_tokens)
    position_bytes = 2 * 4 * spec.num_layers * spec.num_kv_heads * spec.head_dim
    more = {"split": split, "threads": config.threads, "kv_mb": 64 + positions * position_bytes // 10**6}
    async with cloud_process(command_line(**both, **more), token) as url, Tap(url) as tap:
        drafting = {"draft": config.draft, **STEADY}
        sending = {"pack_rows": config.pack_rows, "pad_frames": config.pad_frames}
        settings = {"cloud": (tap.url,), "cloud_token": token, "device": "cpu", "conversations": 0, "name": "audited"}
        device = build(DeviceConfig(split=split, **both, **drafting, **sending, **settings))  # type: ignore[arg-type]
        assert device.remote is not None
        if device.writer.ways.get("").tree_nodes:
            device.stop()
            raise ValueError(f"--draft {' '.join(config.draft)} drafts trees, which an audit cannot read; say another")
        running = asyncio.create_task(device.remote.run())
        try:
            await _connected(device)
            yield device, tap
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            device.stop()


async def recorded(
    device: Device, tap: Tap, prompts: Sequence[Sequence[int]], new: int, told: Callable[[int], None]
) -> list[Recorded]:
    """Answer ``prompts`` one after the other, greedily, with ``new`` tokens at most. told: called with 1 for each.

    Raises ``AuditFailed`` where a session fails or the connection was lost meanwhile.
    """
    found = []
    for prompt in prompts:
        await tap.quiet()
        begin = len(tap.passed)
        try:
            answer, rounds = await _answered(device, prompt, new)
        except SessionFailed as failure:
            raise AuditFailed(f"a passage could not be answered: {failure.message}") from failure
        await tap.quiet()
        found.append(Recorded(tuple(prompt), answer, rounds, tuple(tap.passed[begin:])))
        told(1)
    if tap.connections != 1:
        raise AuditFailed("the connection to the cloud server was lost; nothing that was recorded counts")
    return found


async def _answered(device: Device, prompt: Sequence[int], new: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens of the answer, and how many of them each round chose."""
    chain, way = device.writer.chain, device.writer.ways.get("")
    positions = min(len(prompt) + new, device.writer.max_positions)
    session = chain.open(positions, len(prompt), positions, way.drafter)
    ends = chain.parts.spec.eos_token_ids
    chooser = Chooser(SamplingParams(), prompt, 0, None, ends, positions - len(prompt))
    generation, rounds = Generation(session, chooser, way), list[int]()
    try:
        async with aclosing(generation.run()) as tokens:
            async for _ in tokens:
                # The prompt's own token comes before the first round is counted.
                rounds += [0] * (generation.tally.rounds - len(rounds))
                if rounds:
                    rounds[-1] += 1
    finally:
        session.close()
    return tuple(chooser.generated), tuple(rounds)


async def _connected(device: Device) -> None:
    assert device.remote is not None
    until_s = asyncio.get_running_loop().time() + CONNECT_WITHIN_S
    while not device.remote.connected:
        left_s = until_s - asyncio.get_running_loop().time()
        try:
            await asyncio.wait_for(device.remote.news(), max(0.0, left_s))
        except (TimeoutError, asyncio.TimeoutError):
            raise AuditFailed(f"the device was not connected within {CONNECT_WITHIN_S:g} s") from None
