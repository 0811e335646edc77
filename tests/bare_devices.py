"""Devices of a cloud server without an agent: what they send is the test's affair."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import torch
from clouds import Cloud, chain_over, device_hello, greedy, remote_middle
from oracle import oracle_tokens, prompt_for

from device_agent.sharing.compute import Compute
from split_model.tensor_bytes import to_bytes
from wire.connection import Role
from wire.frames import Tensor
from wire.limits import CLOUD_LINK
from wire.messages import AnyMessage
from wire.session_messages import (
    Advice,
    CloudWelcome,
)
from wire.stream import Stream, dial

HIDDEN = 32

TOKENS: WeakKeyDictionary[Stream, str] = WeakKeyDictionary()
"""What each device may resume its sessions with."""


@asynccontextmanager
async def device(cloud: Cloud, path: Path, **changes: Any) -> AsyncIterator[Stream]:
    """A device that has been welcomed and may now misbehave."""
    async with dial(cloud.url + "/device", Role.DEVICE, CLOUD_LINK) as stream:
        stream.post(msgspec.structs.replace(device_hello(path, 1, 0), **changes))
        welcome = (await stream.receive()).message
        assert isinstance(welcome, CloudWelcome)
        TOKENS[stream] = welcome.resume_token
        yield stream


async def news(stream: Stream) -> AnyMessage:
    """The next message that is not advice on chunk sizes."""
    while isinstance(message := (await stream.receive()).message, Advice):
        pass
    return message


def rows(count: int, hidden: int = HIDDEN, dtype: torch.dtype = torch.float32, fill: float | None = None) -> Tensor:
    """Hidden states for a frame."""
    values = torch.randn(count, hidden, generator=torch.Generator().manual_seed(0)).to(dtype)
    if fill is not None:
        values[0, 0] = fill
    return Tensor(*to_bytes(values))


@asynccontextmanager
async def bystanders(cloud: Cloud, tiny: Path) -> AsyncIterator[None]:
    """Three honest sessions that decode throughout the block; their tokens must be transformers'."""
    compute = Compute()
    async with remote_middle(cloud.url, device_hello(tiny, 1, 0)) as middle:
        chain = chain_over(tiny, 1, 0, middle, compute, 16)
        prompts = [prompt_for(tiny, 10 + each, seed=each) for each in range(3)]
        answers = [asyncio.create_task(greedy(chain, list(prompt), 60)) for prompt in prompts]
        yield
        for prompt, answer in zip(prompts, await asyncio.gather(*answers), strict=True):
            assert answer == oracle_tokens(tiny, prompt, 60)
    compute.stop()
