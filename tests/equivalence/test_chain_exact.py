"""Any cut and any chunking gives transformers' greedy tokens, and its logits within 1e-4, in fp32."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import DEMO, REAL_MODELS, real_model
from clouds import chain_over, local_middle
from exactness import CHUNKS, CUTS, check_exact, layers_of
from tiny_models import TINY_NAMES, build_tiny

from device_agent.local import Compute


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
