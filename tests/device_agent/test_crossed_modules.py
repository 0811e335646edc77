"""How much of the device agent a reader has to know for one round, as a profiler sees it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch
from checkpoints import DEMO
from clouds import chain_over, cloud_here, device_hello, remote_middle

from device_agent.sharing.compute import Compute
from device_agent.speculative.drafters import load_drafters
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import DraftingWay
from drafting.choosing import Chooser
from service.draft_settings import DraftSettings, Prepare
from split_model.checkpoint import Checkpoint
from split_model.sampling import SamplingParams

SPLIT, TOKENS = 2, 30
MOST = 10
"""Where a session is in the cloud is one of them: a cloud server that drains is left while it still answers. What
people who watch are told of a round is another."""


class Crossed:
    """Modules of the device agent in which a function was called, from any thread, while it is ``on``."""

    def __init__(self) -> None:
        self.on = False
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if not self.on or event != "call" or frame.f_code.co_filename == "<string>":  # Records that are only made.
            return
        if (name := frame.f_globals.get("__name__", "")).startswith("device_agent."):
            self.modules.add(name)


@contextmanager
def profiled(by: Crossed) -> Iterator[None]:
    """All that begins here, the compute thread with it."""
    before = sys.getprofile()
    threading.setprofile(by)
    sys.setprofile(by)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


@pytest.mark.parametrize("prepare", ["none", "all"])
async def test_a_round_crosses_few_modules(prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafted, verified in a cloud server, and prepared for: between two tokens in the middle of an answer. What is
    looked at every second is no part of it."""
    monkeypatch.setattr("device_agent.cloud.keeping.LOOK_EVERY_S", 600.0)
    crossed, checkpoint = Crossed(), Checkpoint.open(DEMO)
    settings = DraftSettings(draft_length="fixed", draft_threshold=0.0, draft_cap=4, prepare=prepare)
    with profiled(crossed):
        compute = Compute()
        async with (
            cloud_here(DEMO, SPLIT, 0) as cloud,
            remote_middle(cloud.url, device_hello(DEMO, SPLIT, 0)) as remote,
        ):
            chain = chain_over(DEMO, SPLIT, 0, remote, compute, 16)
            drafters = load_drafters(["adapter"], DEMO / "drafters", checkpoint, SPLIT, torch.float32, chain.parts)
            way = DraftingWay.of(drafters.get(""), settings)
            prompt = [5, 6, 7, 8]
            session = chain.open(len(prompt) + TOKENS, drafter=way.drafter)
            chooser = Chooser(SamplingParams(), prompt, 0, max_tokens=TOKENS)
            async for _ in Generation(session, chooser, way).run():
                crossed.on = 8 <= len(chooser.generated) < TOKENS
            session.close()
        compute.stop()
    assert {"device_agent.speculative.generation", "device_agent.cloud.session"} < crossed.modules
    assert len(crossed.modules) <= MOST, sorted(crossed.modules)
