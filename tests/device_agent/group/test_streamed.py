"""Members that read a part of their weights from the disk at each use give the same rows as with all in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from groups import PORTAL, group_here, plan_of, streamed
from submodel_conformance import check_submodel, rows
from tiny_models import built

from split_model.checkpoint import Checkpoint
from split_model.slices import Slice
from split_model.stack import Span, Stack

NAMES = ("one", PORTAL, "three")
SESSIONS, STEPS = 4, 5


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


@pytest.mark.parametrize("name", ["qwen3", "gpt2", "opt-post-norm"])
@pytest.mark.parametrize(("share", "ring"), [(1, 1), (2, 1), (1, 3), (1, 20)])
async def test_sessions_share_what_is_read(name: str, share: int, ring: int, tiny_folder: Path) -> None:
    """Several sessions at once, in micro-batches, whether a stage's units fit the ring together or not: each as if it
    were alone with all weights."""
    path = built(name, tiny_folder)
    stack = stack_of(path)
    size = stack.spec.hidden_size

    async def check(number: int) -> None:
        lengths = [7 + 31 * number, *(1 + number * (step % 3) for step in range(STEPS))]
        hidden = rows(sum(lengths), size, number)
        cache, session = stack.new_cache(len(hidden)), group.open(len(hidden))
        for begin, end in pairwise([sum(lengths[:count]) for count in range(len(lengths) + 1)]):
            got = await asyncio.wait_for(session.forward(hidden[begin:end], min(end - begin, 40)), 60)
            expected = stack.forward(hidden[begin:end], [Span(cache, end - begin)])[-40:]
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
        session.close()

    plan = streamed(plan_of(stack.spec, "interleaved", NAMES[:2], micro_batches=3), stack.spec, share, ring)
    with group_here(path, plan) as group:
        await asyncio.gather(*(check(number) for number in range(SESSIONS)))
