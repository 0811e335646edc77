"""The same over real websockets between real processes: any cut and chunking gives transformers' tokens and logits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from checkpoints import DEMO, REAL_MODELS, real_model
from clouds import chain_over, device_hello, greedy, remote_middle
from exactness import CHUNKS, CUTS, PROMPT, check_exact, layers_of
from forked import ForkedProcess
from oracle import oracle_tokens, prompt_for
from processes import cloud_process
from tiny_models import built

from device_agent.sharing.compute import Compute

pytestmark = pytest.mark.system

SAMPLE: dict[tuple[str, int], tuple[int, ...]] = {("2", 0): (1, 64), ("1", 1): (7,), ("all", 0): (PROMPT,)}
"""Cuts of the demo model and their chunk sizes."""
ARCHITECTURES = ["llama-llama3-rope", "llama-biases", "mistral-window", "qwen2-windows", "qwen3"]
BATCHED = 40
"""Tokens of each of eight sessions."""


async def check_over_processes(path: Path, split: int, tail: int, log: Path, chunks: Sequence[int] = CHUNKS) -> None:
    """These chunk sizes against one cloud process."""
    compute = Compute()
    with cloud_process(path, split, tail, log, kind=ForkedProcess) as cloud:
        async with remote_middle(f"ws://127.0.0.1:{cloud.port}", device_hello(path, split, tail)) as middle:
            for chunk in chunks:
                await check_exact(chain_over(path, split, tail, middle, compute, chunk), path)
    compute.stop()


@pytest.mark.parametrize("cut", SAMPLE, ids=lambda cut: f"m={cut[0]},k={cut[1]}")
async def test_demo_model_over_processes(cut: tuple[str, int], tmp_path: Path) -> None:
    """The demo model, a real cloud process behind a real websocket."""
    await check_over_processes(DEMO, *layers_of(cut, DEMO), tmp_path / "cloud.log", SAMPLE[cut])


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"m={cut[0]},k={cut[1]}")
async def test_every_cut_of_the_demo_model_over_processes(cut: tuple[str, int], tmp_path: Path) -> None:
    """Every cut of the demo model in every chunk size."""
    await check_over_processes(DEMO, *layers_of(cut, DEMO), tmp_path / "cloud.log")


async def test_a_real_model_over_processes(tmp_path: Path) -> None:
    """A real small model at m = 1, k = 0."""
    await check_over_processes(real_model("stories-260k"), 1, 0, tmp_path / "cloud.log", (64,))


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL_MODELS)
async def test_real_models_over_processes(name: str, tmp_path: Path) -> None:
    """The real small models at m = 1, k = 0 in every chunk size."""
    await check_over_processes(real_model(name), 1, 0, tmp_path / "cloud.log")


@pytest.mark.parametrize("name", ["mistral-window", "qwen3"])
async def test_two_architectures_over_processes(name: str, tiny_folder: Path, tmp_path: Path) -> None:
    """Windows of attention and norms of heads, with layers on both ends of the device."""
    await check_over_processes(built(name, tiny_folder), 1, 1, tmp_path / "cloud.log", (7, 64))


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
async def test_architectures_over_processes(name: str, tiny_folder: Path, tmp_path: Path) -> None:
    """One cut of each kind of architecture with layers on both ends of the device, in every chunk size."""
    await check_over_processes(built(name, tiny_folder), 1, 1, tmp_path / "cloud.log")


async def test_eight_sessions_together_as_alone(tmp_path: Path) -> None:
    """Eight prompts of different lengths at once give what each gives alone, and the cloud batched them."""
    compute = Compute()
    prompts = [prompt_for(DEMO, 5 + 17 * each, seed=each) for each in range(8)]
    with cloud_process(DEMO, 2, 0, tmp_path / "cloud.log", kind=ForkedProcess) as cloud:
        async with remote_middle(f"ws://127.0.0.1:{cloud.port}", device_hello(DEMO, 2, 0)) as middle:
            chain = chain_over(DEMO, 2, 0, middle, compute, 32)
            answers = await asyncio.gather(*(greedy(chain, list(prompt), BATCHED) for prompt in prompts))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{cloud.port}", trust_env=False) as client:
            metrics = (await client.get("/metrics")).text
            state = (await client.get("/state")).json()
    compute.stop()
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == oracle_tokens(DEMO, prompt, BATCHED)
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    steps = float(values["trilby_cloud_iteration_tokens_total_count"])
    assert steps < 0.8 * 8 * BATCHED, "decode rows of several sessions share steps"
    assert state["sessions"] == []
    assert state["pages"]["used"] == 0
