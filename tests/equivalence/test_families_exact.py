"""GPT-2 and OPT over a cloud's socket: whole, in a batch, drafted, and up to their last position."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from clouds import chain_over, cloud_here, device_hello, greedy, remote_middle
from exactness import check_exact
from oracle import oracle_tokens, prompt_for
from tiny_models import built

from cloud_server import build
from cloud_server.config import CloudConfig
from device_agent.chain.chain import Chain
from device_agent.sharing.compute import Compute
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import DraftingWay, DraftSettings
from drafting.choosing import Chooser
from drafting.small_model import SmallModel, SmallModelDrafter
from split_model.checkpoint import Checkpoint
from split_model.reference import Reference
from split_model.sampling import SamplingParams

POSITIONS = 256


@pytest.fixture(params=["gpt2", "opt-post-norm"])
def folder(request: pytest.FixtureRequest, tiny_folder: Path) -> Path:
    return built(str(request.param), tiny_folder)


async def drafted(chain: Chain, model: Reference, prompt: list[int], tokens: int) -> list[int]:
    """Greedy tokens, drafted by the model itself."""
    small = SmallModel(model.embedding, model.stack, model.head, model.spec.vocab_size)
    way = DraftingWay.of(SmallModelDrafter("itself", small, 0), DraftSettings(draft_threshold=0.0))
    session = chain.open(len(prompt) + tokens, len(prompt), 0, way.drafter)
    try:
        chooser = Chooser(SamplingParams(), prompt, 0, max_tokens=tokens)
        return [chosen.token async for chosen in Generation(session, chooser, way).run()]
    finally:
        session.close()


@pytest.mark.parametrize(("split", "tail"), [(0, 0), (1, 1)])
async def test_over_a_cloud(folder: Path, split: int, tail: int) -> None:
    """The first layer, and the positions with it, in the cloud or on the device: transformers' tokens and logits."""
    compute = Compute()
    async with (
        cloud_here(folder, split, tail) as cloud,
        remote_middle(cloud.url, device_hello(folder, split, tail)) as middle,
    ):
        chain = chain_over(folder, split, tail, middle, compute, 7)
        await check_exact(chain, folder)
        prompts = [prompt_for(folder, 5 + 13 * each, seed=each) for each in range(4)]
        answers = await asyncio.gather(*(greedy(chain, list(prompt), 20) for prompt in prompts))
        assert answers == [oracle_tokens(folder, prompt, 20) for prompt in prompts]
    compute.stop()


async def test_drafted_up_to_the_last_position(folder: Path) -> None:
    """Drafts and what is prepared reach behind the last position, and change no token before it."""
    compute, tokens = Compute(), 30
    prompt = prompt_for(folder, POSITIONS - tokens)
    async with cloud_here(folder, 1) as cloud, remote_middle(cloud.url, device_hello(folder, 1, 0)) as middle:
        chain = chain_over(folder, 1, 0, middle, compute, 64)
        answer = await drafted(chain, Reference.load(folder, torch.float32), list(prompt), tokens)
    compute.stop()
    assert answer == oracle_tokens(folder, prompt, tokens)


def test_a_cloud_takes_no_session_that_is_longer(folder: Path) -> None:
    """Whatever it was told: a position without a row in the table cannot be computed."""
    spec = Checkpoint.open(folder).spec
    for asked in (0, 100_000):
        assert build._longest(CloudConfig(model=str(folder), split=1, max_model_len=asked), spec) == POSITIONS
