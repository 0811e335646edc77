"""Members that read a part of their weights from the disk at each use give the same rows as with all in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from groups import PORTAL, group_here, plan_of, streamed
from samples import sample
from submodel_conformance import check_sessions, check_submodel
from tiny_models import built

from split_model.checkpoint import Checkpoint
from split_model.slices import Slice
from split_model.stack import Stack

NAMES = ("one", PORTAL, "three")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is repacked for a test goes with it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def stack_of(path: Path, first: int = 0) -> Stack:
    """The same layers in one process."""
    checkpoint = Checkpoint.open(path)
    return Stack.load(checkpoint, Slice(first, checkpoint.spec.num_layers), torch.float32)


@pytest.mark.parametrize(("names", "form"), [(NAMES[:2], "interleaved"), (NAMES, "pipeline"), (NAMES[1:2], "pipeline")])
async def test_a_group_that_streams_everything_conforms(names: Sequence[str], form: str, tiny_folder: Path) -> None:
    """All halves of all layers, into a ring for one unit: a submodel as any other."""
    path = built("llama", tiny_folder)
    spec = Checkpoint.open(path).spec
    plan = streamed(plan_of(spec, form, names, layers=3, micro_batches=2), spec)
    with group_here(path, plan, first=1) as group:
        await check_submodel(group, stack_of(path, 1))


@pytest.mark.parametrize("form", ["tensor", "galaxy-1"])
async def test_shards_that_are_streamed_conform(form: str, tiny_folder: Path) -> None:
    """TPI-LLM's and Galaxy's layers, of which each member reads its own heads and columns; the last has no heads."""
    path = built("llama", tiny_folder)
    spec = Checkpoint.open(path).spec
    plan = streamed(plan_of(spec, form, NAMES, shares=(3, 2, 1), layers=3), spec, ring=2)
    assert all(plan.streamed)
    with group_here(path, plan, first=1) as group:
        await check_submodel(group, stack_of(path, 1))


@pytest.mark.parametrize(
    ("name", "share", "ring"),
    sample(
        ((name, *how) for name in ("qwen3", "gpt2", "opt-post-norm") for how in ((1, 1), (2, 1), (1, 3), (1, 20))),
        "qwen3-1-1 gpt2-2-1 opt-post-norm-1-3 gpt2-1-20 qwen3-2-1 opt-post-norm-1-1",
    ),
)
async def test_sessions_share_what_is_read(name: str, share: int, ring: int, tiny_folder: Path) -> None:
    """Several sessions at once, in micro-batches, whether a stage's units fit the ring together or not: each as if it
    were alone with all weights."""
    path = built(name, tiny_folder)
    stack = stack_of(path)

    plan = streamed(plan_of(stack.spec, "interleaved", NAMES[:2], micro_batches=3), stack.spec, share, ring)
    with group_here(path, plan) as group:
        await check_sessions(group, stack)
