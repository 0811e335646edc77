"""A cloud server inside the test's own event loop, reached over a real websocket, and chains of submodels over it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn
from checkpoints import DEMO
from quick_server import QuickServer

from cloud_server.app import create_app
from cloud_server.build import build
from cloud_server.config import CloudConfig
from cloud_server.server import CloudServer
from cloud_server.stages.pipeline import PipelineRunner
from device_agent.chain.chain import Chain, ChainSession
from device_agent.chain.local import LocalSubmodel
from device_agent.chain.model_ends import DeviceParts
from device_agent.chain.prefill import prefill
from device_agent.cloud.remote import RemoteSubmodel
from device_agent.sharing.compute import Compute
from device_agent.speculative.drafters import load_drafters
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import DraftingWay, DraftSettings
from drafting.choosing import Chooser
from drafting.drafter import Drafter
from split_model import warming
from split_model.checkpoint import Checkpoint
from split_model.names import model_name
from split_model.sampling import SamplingParams
from split_model.slices import middle_slice
from split_model.stack import Stack
from split_model.submodel import Submodel
from wire.limits import MESSAGE_BYTES
from wire.session_messages import DeviceHello

WAIT_S = 20.0
START_WITHIN_S = 120.0
HOLDS_WITHIN_S = 60.0
"""What normally holds at once, on a machine that is busy."""
DRAFTED = 32
"""Positions behind an answer that drafts may take."""


@dataclass
class Cloud:
    """A running cloud server."""

    server: CloudServer
    url: str


@asynccontextmanager
async def cloud_here(
    model: Path, split: int, tail: int = 0, *, warms: bool = False, **settings: Any
) -> AsyncIterator[Cloud]:
    """A cloud server on a free port, in this event loop; ``warms``: after it has warmed up, as it does for users."""
    # Pages for these tests, not half of the machine: a process that has mapped that much cannot be forked.
    server = build(CloudConfig(model=str(model), split=split, tail=tail, **{"kv_mb": 64, **settings}))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        config = uvicorn.Config(
            create_app(server),
            log_level="error",
            ws="websockets-sansio",
            ws_max_size=MESSAGE_BYTES,
            ws_per_message_deflate=False,
        )
        runner = QuickServer(config)
        with nullcontext() if warms else cold():
            task = asyncio.create_task(runner._serve([listener]))  # Without uvicorn's signal handlers.
            await until(lambda: runner.started and server.engine.alive, START_WITHIN_S)
        try:
            yield Cloud(server, f"ws://127.0.0.1:{port}")
        finally:
            runner.stop.set()
            await task


@contextmanager
def cold() -> Iterator[None]:
    """What starts meanwhile computes next to nothing before its first request."""
    before = warming.WARM_UP_S
    warming.WARM_UP_S = 0.0  # type: ignore[misc]
    try:
        yield
    finally:
        warming.WARM_UP_S = before  # type: ignore[misc]


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
        await until(lambda: all(link.ready for link in remote.clouds.links))
        yield remote
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def middle_of(model: Path) -> Stack:
    """Layers 1 to the last but one, for comparison."""
    checkpoint = Checkpoint.open(model)
    return Stack.load(checkpoint, middle_slice(checkpoint.spec, 1, 1), torch.float32)


def local_middle(model: Path, split: int, tail: int, compute: Compute) -> LocalSubmodel:
    """The same layers on this machine."""
    checkpoint = Checkpoint.open(model)
    return LocalSubmodel(Stack.load(checkpoint, middle_slice(checkpoint.spec, split, tail), torch.float32), compute)


def chain_over(model: Path, split: int, tail: int, middle: Submodel | None, compute: Compute, chunk: int) -> Chain:
    """A whole model: both ends loaded here, ``middle`` between them."""
    return Chain(DeviceParts.load(Checkpoint.open(model), split, tail, torch.float32), middle, compute, chunk)


def demo_adapter(chain: Chain, split: int) -> Drafter | None:
    """The demo model's adapter for a chain of it."""
    checkpoint = Checkpoint.open(DEMO)
    return load_drafters(["adapter"], DEMO / "drafters", checkpoint, split, torch.float32, chain.parts).get("adapter")


async def greedy(chain: Chain, prompt: list[int], tokens: int, drafter: Drafter | None = None) -> list[int]:
    """``tokens`` greedy tokens after ``prompt``."""
    session = chain.open(len(prompt) + tokens + (DRAFTED if drafter is not None else 0), drafter=drafter)
    try:
        chooser = Chooser(SamplingParams(), prompt, 0, max_tokens=tokens)
        way = DraftingWay.of(drafter, DraftSettings())
        return [chosen.token async for chosen in Generation(session, chooser, way).run()]
    finally:
        session.close()


def plain() -> DraftingWay:
    """Without a drafter."""
    return DraftingWay.of(None, DraftSettings())


async def logits_of(session: ChainSession, ids: Sequence[int], want: int = 1) -> torch.Tensor:
    """The logits ``[want, vocab]`` of the last of some new tokens."""
    return session.chain.parts.head.forward(await prefill(session, ids, want))


async def until(condition: Any, within_s: float = HOLDS_WITHIN_S) -> None:
    """Wait until ``condition()`` holds; fails when it does not in time."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "waited in vain"
        await asyncio.sleep(0.002)


def rows_in(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every forward that reaches the cloud from now on."""
    seen: list[int] = []
    admit = cloud.server.engine.sessions.admit

    def counted(key: Any, sequence: int, position: int, rows: int, *rest: Any) -> Any:
        seen.append(rows)
        return admit(key, sequence, position, rows, *rest)

    monkeypatch.setattr(cloud.server.engine.sessions, "admit", counted)
    return seen


def stages_of(cloud: Cloud) -> list[int]:
    """The processes of a cloud server's stages beside its own."""
    runner = cloud.server.engine._runner
    assert isinstance(runner, PipelineRunner)
    return runner.pids


async def tokens_through(cloud: Cloud, model: Path, prompts: Sequence[tuple[int, ...]], tokens: int) -> list[list[int]]:
    """Greedy tokens after each prompt, all at once; the device keeps the first two layers, and waits for as long as
    stages may take to start again."""
    compute = Compute()
    try:
        hello = device_hello(model, 2, 0)
        async with remote_middle(cloud.url, hello, START_WITHIN_S, START_WITHIN_S) as middle:
            chain = chain_over(model, 2, 0, middle, compute, 16)
            return list(await asyncio.gather(*(greedy(chain, list(prompt), tokens) for prompt in prompts)))
    finally:
        compute.stop()
