"""A cloud server inside the test's own event loop, reached over a real websocket, and chains of submodels over it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import uvicorn

from cloud_server.app import CloudServer, create_app
from cloud_server.build import build
from cloud_server.config import CloudConfig
from device_agent.chain import Chain
from device_agent.choosing import Chooser
from device_agent.generation import generate
from device_agent.local import Compute, LocalSubmodel
from device_agent.parts import DeviceParts
from device_agent.remote import RemoteSubmodel
from split_model.checkpoint import Checkpoint
from split_model.names import model_name
from split_model.sampling import SamplingParams
from split_model.slices import middle_slice
from split_model.stack import Stack
from split_model.submodel import Submodel
from wire.limits import MAX_FRAME_BYTES
from wire.messages import DeviceHello

WAIT_S = 20.0


@dataclass
class Cloud:
    """A running cloud server."""

    server: CloudServer
    url: str


@asynccontextmanager
async def cloud_here(model: Path, split: int, tail: int = 0, **settings: Any) -> AsyncIterator[Cloud]:
    """A cloud server on a free port, in this event loop."""
    # Pages for these tests, not half of the machine: a process that has mapped that much cannot be forked.
    server = build(CloudConfig(model=str(model), split=split, tail=tail, **{"kv_mb": 64, **settings}))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        config = uvicorn.Config(
            create_app(server),
            log_level="error",
            ws="websockets-sansio",
            ws_max_size=MAX_FRAME_BYTES,
            ws_per_message_deflate=False,
        )
        runner = uvicorn.Server(config)
        task = asyncio.create_task(runner._serve([listener]))  # Without uvicorn's signal handlers.
        await until(lambda: runner.started)
        try:
            yield Cloud(server, f"ws://127.0.0.1:{port}")
        finally:
            runner.should_exit = True
            await task


def device_hello(model: Path, split: int, tail: int, dtype: str = "float32") -> DeviceHello:
    """The hello of a device that keeps ``split`` and ``tail`` layers."""
    checkpoint = Checkpoint.open(model)
    middle = middle_slice(checkpoint.spec, split, tail)
    return DeviceHello(
        name="test device",
        credential="",
        model=model_name(str(model)),
        digest=checkpoint.digest(),
        first_layer=middle.first_layer,
        last_layer=middle.last_layer,
        hidden_size=checkpoint.spec.hidden_size,
        dtype=dtype,
    )


@asynccontextmanager
async def remote_middle(
    urls: str | Sequence[str],
    hello: DeviceHello,
    reply_within_s: float = WAIT_S,
    recover_within_s: float = WAIT_S,
    *,
    may_pack: bool = True,
) -> AsyncIterator[RemoteSubmodel]:
    """The layers in one or more clouds as a submodel, connected to all."""
    urls = [urls] if isinstance(urls, str) else urls
    remote = RemoteSubmodel(urls, hello, reply_within_s, recover_within_s, may_pack=may_pack)
    task = asyncio.create_task(remote.run())
    try:
        await until(lambda: all(link.ready for link in remote.links))
        yield remote
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def local_middle(model: Path, split: int, tail: int, compute: Compute) -> LocalSubmodel:
    """The same layers on this machine."""
    checkpoint = Checkpoint.open(model)
    return LocalSubmodel(Stack.load(checkpoint, middle_slice(checkpoint.spec, split, tail), torch.float32), compute)


def chain_over(model: Path, split: int, tail: int, middle: Submodel | None, compute: Compute, chunk: int) -> Chain:
    """A whole model: both ends loaded here, ``middle`` between them."""
    return Chain(DeviceParts.load(Checkpoint.open(model), split, tail, torch.float32), middle, compute, chunk)


async def greedy(chain: Chain, prompt: list[int], tokens: int) -> list[int]:
    """``tokens`` greedy tokens after ``prompt``."""
    session = chain.open(len(prompt) + tokens)
    try:
        chooser = Chooser(SamplingParams(), prompt, 0, None)
        return [step.chosen.token async for step in generate(session, prompt, chooser, (), tokens)]
    finally:
        session.close()


async def until(condition: Any, within_s: float = WAIT_S) -> None:
    """Wait until ``condition()`` holds; fails when it does not in time."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "waited in vain"
        await asyncio.sleep(0.01)
