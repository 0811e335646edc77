"""Any cut and any chunking gives transformers' greedy tokens, and its logits within 1e-4, in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from checkpoints import DEMO, REAL_MODELS, real_model
from clouds import chain_over, local_middle
from exactness import CHUNKS, CUTS, check_exact, layers_of
from tiny_models import TINY_NAMES, built

from device_agent.sharing.compute import Compute

Cut = tuple[str, int]


def samples() -> list[Any]:
    """Two cuts of every architecture, one of them with layers at the end of the device, each with one chunk size: all
    eight cuts, all chunk sizes, and nearly every pair of the two. One of them is tested always, by turns."""
    chosen = []
    for number, name in enumerate(TINY_NAMES):
        turn = number + number // 4
        cuts = CUTS[number % 4], CUTS[4 + (number + 2) % 4]
        chunks = CHUNKS[turn % 4], CHUNKS[(turn + 1) % 4]
        for at, both in enumerate(zip(cuts, chunks, strict=True)):
            marks = () if at == number % 2 else pytest.mark.slow
            chosen.append(pytest.param(name, *both, id=said(name, *both), marks=marks))
    return chosen


def said(name: str, cut: Cut, chunk: int) -> str:
    """A test's name."""
    return f"{name}-m={cut[0]},k={cut[1]}-{chunk}"


REAL_SAMPLES = [
    ("demo", ("2", 1), 7),
    ("demo", ("0", 0), 64),
    *((name, cut, 64) for name, cut in zip(REAL_MODELS, [("1", 0), ("all", 1), ("1", 1)], strict=True)),
]


async def check(path: Path, cut: Cut, chunks: Sequence[int]) -> None:
    """All submodels in one process."""
    split, tail = layers_of(cut, path)
    compute = Compute()
    middle = local_middle(path, split, tail, compute)
    for chunk in chunks:
        await check_exact(chain_over(path, split, tail, middle, compute, chunk), path)
    compute.stop()


def real(name: str) -> Path:
    """The demo model or another real one."""
    return DEMO if name == "demo" else real_model(name)


@pytest.mark.parametrize(("name", "cut", "chunk"), [pytest.param(*each, id=said(*each)) for each in REAL_SAMPLES])
async def test_real_models_split_here(name: str, cut: Cut, chunk: int) -> None:
    """A real model is the same in pieces."""
    await check(real(name), cut, [chunk])


@pytest.mark.parametrize(("name", "cut", "chunk"), samples())
async def test_every_architecture_split_here(name: str, cut: Cut, chunk: int, tiny_folder: Path) -> None:
    """Every architecture is the same in pieces."""
    await check(built(name, tiny_folder), cut, [chunk])


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"m={cut[0]},k={cut[1]}")
@pytest.mark.parametrize("name", ["demo", *REAL_MODELS])
async def test_real_models_split_anywhere(name: str, cut: Cut) -> None:
    """Every cut and chunk size of a real model."""
    await check(real(name), cut, CHUNKS)


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"m={cut[0]},k={cut[1]}")
@pytest.mark.parametrize("name", TINY_NAMES)
async def test_every_architecture_split_anywhere(name: str, cut: Cut, tiny_folder: Path) -> None:
    """Every cut and chunk size of every architecture."""
    await check(built(name, tiny_folder), cut, CHUNKS)
