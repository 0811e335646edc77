"""A device that asks for padded frames, a real cloud server, and an onlooker between them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from clouds import chain_over, cloud_here, device_hello, greedy, remote_middle, until
from fault_proxy import FaultProxy
from oracle import oracle_tokens, prompt_for

from device_agent.cloud.remote import RemoteSubmodel
from device_agent.sharing.compute import Compute
from wire.limits import CLOUD_LINK
from wire.padding import Padding


async def test_tokens_are_the_same_and_lengths_are_few(tiny: Path, compute: Compute) -> None:
    """Prompts of different lengths and their tokens, of which an onlooker sees one length of message."""
    seen: list[bytes] = []
    hello = msgspec.structs.replace(device_hello(tiny, 1, 1), pads=True)
    async with (
        cloud_here(tiny, 1, 1) as cloud,
        FaultProxy(cloud.url, kept=seen) as proxy,
        remote_middle(proxy.url, hello) as middle,
    ):
        chain = chain_over(tiny, 1, 1, middle, compute, 0)
        for length in (3, 5, 7):
            prompt = prompt_for(tiny, length, seed=length)
            assert await greedy(chain, list(prompt), 6) == oracle_tokens(tiny, prompt, 6)
    padding = Padding.of(CLOUD_LINK, hello.hidden_size, hello.dtype)
    assert {len(each) for each in seen[1:]} == {padding.size(1)}, "all but the hello"
    assert len(seen) > 20


async def test_a_cloud_that_cannot_is_refused(tiny: Path) -> None:
    """One of an older release grants nothing: the device says why, and sends it no row."""
    hello = msgspec.structs.replace(device_hello(tiny, 1, 1), pads=True)
    async with cloud_here(tiny, 1, 1) as cloud:
        welcome = cloud.server._welcome
        cloud.server._welcome = lambda token, pads: welcome(token, False)  # type: ignore[method-assign]
        remote = RemoteSubmodel([cloud.url], hello, 5.0)
        running = asyncio.create_task(remote.run())
        try:
            await until(lambda: remote.clouds.links[0].refusal is not None)
            assert not remote.connected
            refusal = remote.clouds.links[0].refusal
            assert refusal is not None and "--pad-frames" in refusal.message
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
