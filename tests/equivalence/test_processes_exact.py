"""The same over real websockets between real processes: any cut and chunking gives transformers' tokens and logits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from checkpoints import DEMO, real_model
from clouds import chain_over, device_hello, greedy, remote_middle
from exactness import CHUNKS, CUTS, TOKENS, check_exact, layers_of
from oracle import oracle_tokens, prompt_for
from processes import cloud_process
from tiny_models import build_tiny

from device_agent.local import Compute

pytestmark = pytest.mark.system

OTHERS = ["tinystories-656k", "stories-260k", "draft-180k"]
ARCHITECTURES = ["llama-llama3-rope", "llama-biases", "mistral-window", "qwen2-windows", "qwen3"]


async def check_over_processes(path: Path, split: int, tail: int, log: Path) -> None:
    """Every chunk size against one cloud process."""
    compute = Compute()
    with cloud_process(path, split, tail, log) as cloud:
        async with remote_middle(f"ws://127.0.0.1:{cloud.port}", device_hello(path, split, tail)) as middle:
            for chunk in CHUNKS:
                await check_exact(chain_over(path, split, tail, middle, compute, chunk), path)
    compute.stop()


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"m={cut[0]},k={cut[1]}")
async def test_demo_model_over_processes(cut: tuple[str, int], tmp_path: Path) -> None:
    """Every cut of the demo model, a real cloud process behind a real websocket."""
    await check_over_processes(DEMO, *layers_of(cut, DEMO), tmp_path / "cloud.log")


@pytest.mark.parametrize("name", OTHERS)
async def test_real_models_over_processes(name: str, tmp_path: Path) -> None:
    """The real small models at m = 1, k = 0."""
    await check_over_processes(real_model(name), 1, 0, tmp_path / "cloud.log")


@pytest.mark.parametrize("name", ARCHITECTURES)
async def test_architectures_over_processes(name: str, tiny_folder: Path, tmp_path: Path) -> None:
    """One cut of each kind of architecture with layers on both ends of the device."""
    path = tiny_folder / name
    if not path.exists():
        build_tiny(name, path)
    await check_over_processes(path, 1, 1, tmp_path / "cloud.log")


async def test_eight_sessions_together_as_alone(tmp_path: Path) -> None:
    """Eight prompts of different lengths at once give what each gives alone, and the cloud batched them."""
    compute = Compute()
    prompts = [prompt_for(DEMO, 5 + 17 * each, seed=each) for each in range(8)]
    with cloud_process(DEMO, 2, 0, tmp_path / "cloud.log") as cloud:
        async with remote_middle(f"ws://127.0.0.1:{cloud.port}", device_hello(DEMO, 2, 0)) as middle:
            chain = chain_over(DEMO, 2, 0, middle, compute, 32)
            answers = await asyncio.gather(*(greedy(chain, list(prompt), TOKENS) for prompt in prompts))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{cloud.port}", trust_env=False) as client:
            metrics = (await client.get("/metrics")).text
            state = (await client.get("/state")).json()
    compute.stop()
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == oracle_tokens(DEMO, prompt, TOKENS)
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    steps = float(values["trilby_cloud_iteration_tokens_total_count"])
    assert steps < 0.8 * 8 * TOKENS, "decode rows of several sessions share steps"
    assert state["sessions"] == []
    assert state["pages"]["used"] == 0
