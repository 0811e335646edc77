"""Any cut and any chunking gives transformers' greedy tokens, and its logits within 1e-4, in fp32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoints import DEMO, REAL_MODELS, real_model
from clouds import chain_over, greedy, local_middle
from oracle import TOLERANCE, oracle_logits, oracle_tokens, prompt_for
from tiny_models import TINY_NAMES, build_tiny

from device_agent.chain import Chain
from device_agent.local import Compute
from split_model.checkpoint import Checkpoint

TOKENS = 64
PROMPT = 70
CHUNKS = (1, 7, 64, PROMPT)
CUTS = [("0", 0), ("1", 0), ("2", 0), ("all", 0), ("0", 1), ("1", 1), ("2", 1), ("all", 1)]


def layers_of(cut: tuple[str, int], path: Path) -> tuple[int, int]:
    """The cut's m and k for this model; a model with fewer layers skips the ones it has not."""
    layers = Checkpoint.open(path).spec.num_layers
    tail = cut[1]
    split = layers - tail if cut[0] == "all" else int(cut[0])
    if split + tail > layers:
        pytest.skip(f"{layers} layers cannot be cut at {cut}")
    return split, tail


async def check_exact(chain: Chain, path: Path, tokens: int = TOKENS, length: int = PROMPT) -> None:
    """Tokens and logits of the chain equal transformers'."""
    prompt = prompt_for(path, length)
    expected = oracle_tokens(path, prompt, tokens)
    assert await greedy(chain, list(prompt), tokens) == expected
    ids = prompt + tuple(expected)
    session = chain.open(len(ids))
    try:
        logits = await session.forward(ids, len(ids), torch.clone)
    finally:
        session.close()
    assert float((logits - oracle_logits(path, ids)).abs().max()) < TOLERANCE


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"m={cut[0]},k={cut[1]}")
@pytest.mark.parametrize("name", ["demo", *REAL_MODELS])
async def test_real_models_split_here(name: str, cut: tuple[str, int]) -> None:
    """Every cut and chunk size of a real model, all submodels in one process."""
    path = DEMO if name == "demo" else real_model(name)
    split, tail = layers_of(cut, path)
    compute = Compute()
    middle = local_middle(path, split, tail, compute)
    for chunk in CHUNKS:
        await check_exact(chain_over(path, split, tail, middle, compute, chunk), path)
    compute.stop()


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"m={cut[0]},k={cut[1]}")
@pytest.mark.parametrize("name", TINY_NAMES)
async def test_every_architecture_split_here(name: str, cut: tuple[str, int], tiny_folder: Path) -> None:
    """Every cut and chunk size of every architecture, all submodels in one process."""
    path = tiny_folder / name
    if not path.exists():
        build_tiny(name, path)
    split, tail = layers_of(cut, path)
    compute = Compute()
    middle = local_middle(path, split, tail, compute)
    for chunk in CHUNKS:
        await check_exact(chain_over(path, split, tail, middle, compute, chunk), path)
    compute.stop()
