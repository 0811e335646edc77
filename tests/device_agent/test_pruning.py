"""Prompts that are read without some heads: only where it was allowed, as far as needed, and for the whole answer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import DEMO
from clouds import local_middle
from pruned_prompts import (
    LIMIT_S,
    LONG,
    ROWS_10_MS,
    SHORT,
    TOKENS,
    finished,
    request,
    some_calibration,
    without_heads,
)
from safetensors.torch import save_file
from served_chains import DRAFTLESS, expected, served

from device_agent.answering.answer import ServedChain
from device_agent.answering.pruned import AGAIN_S
from device_agent.build import build
from device_agent.chain.local import LocalSubmodel
from device_agent.chain.local_pruning import LocalPruner
from device_agent.chain.pass_costs import measured_costs
from device_agent.config import DeviceConfig
from device_agent.planning.limit import LimitTooShort
from device_agent.planning.pruning import PassCosts, PruningPlan, levels_of
from device_agent.sharing.compute import Compute
from device_agent.speculative.drafters import Drafters
from drafting.lookup import LookupDrafter
from split_model.checkpoint import Checkpoint
from split_model.hub import identity
from split_model.pruning.calibration import Calibration
from split_model.pruning.kept import KeptHeads, count_pruned
from split_model.pruning.kept_calibration import kept_calibration
from split_model.pruning.watched import Layers
from split_model.reference import Reference
from wire.errors import Code, SessionFailed


@pytest.fixture
def calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calibration:
    """One that is kept already."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return some_calibration()


@asynccontextmanager
async def pruning(limit_s: float = LIMIT_S, split: int | None = None, **more: Any) -> AsyncIterator[ServedChain]:
    """The demo model on this device, with its layers in one stack or in two."""
    compute = Compute()
    middle = None if split is None else local_middle(DEMO, split, 0, compute)
    drafters = Drafters({"lookup": LookupDrafter(), "none": None}, 0) if split is not None else DRAFTLESS
    async with served(middle, drafters, split=split, compute=compute) as model:
        between = middle.stack if isinstance(middle, LocalSubmodel) else None
        pruner = LocalPruner(Checkpoint.open(DEMO), model.chain.parts, between, limit_s, 1024, **more)
        await compute.lane().submit(lambda: pruner.prepare(lambda *about: ROWS_10_MS))
        yield dataclasses.replace(model, pruner=pruner)


def by_hand(model: ServedChain, found: Calibration, ids: tuple[int, ...]) -> tuple[bytes, int]:
    """What a model says whose heads are those that the limit leaves, and how many are missing."""
    spec = model.chain.parts.spec
    levels = levels_of(found.order, spec.num_layers, spec.num_heads, spec.heads_per_group)
    sets = PruningPlan(levels, ROWS_10_MS).within(len(ids), LIMIT_S).sets
    return without_heads(model, sets, found.means, ids), count_pruned(sets)


@pytest.mark.parametrize("split", [None, 2], ids=["plainly", "drafted"])
async def test_long_prompts_lose_as_many_heads_as_they_must(calibration: Calibration, split: int | None) -> None:
    """A long prompt's answer is that of the model without the heads that have no time, each choice's, also where it is
    drafted and layers are in two stacks. Short prompts, and whoever asks for exactness, have transformers' tokens."""
    async with pruning(split=split) as model:
        wanted, count = by_hand(model, calibration, LONG)
        assert 0 < count < 48 and wanted != expected(model, LONG, TOKENS)
        assert await finished(model, request(n=2)) == ([wanted] * 2, 0, [count] * 2)
        assert await finished(model, request(exact=True)) == ([expected(model, LONG, TOKENS)], 0, [0])
        assert await finished(model, request(SHORT)) == ([expected(model, SHORT, TOKENS)], 0, [0])


async def test_no_turn_goes_on_with_what_was_read_without_heads(calibration: Calibration) -> None:
    """Neither exactly nor pruned again. What an exact turn has left needs no time, so a prompt that goes on with it
    loses no head."""
    async with pruning() as model:
        first, _, _ = await finished(model, request())
        again, cached, pruned = await finished(model, request())
        assert again == first and cached == 0 and pruned != [0]
        tokens, cached, _ = await finished(model, request(exact=True))
        assert tokens == [expected(model, LONG, TOKENS)] and cached == 0
        tokens, cached, pruned = await finished(model, request())
        assert tokens == [expected(model, LONG, TOKENS)] and cached == len(LONG) - 1 and pruned == [0]


async def test_a_limit_that_no_pruning_reaches_is_refused_with_the_floor(calibration: Calibration) -> None:
    """The client is told what would do, before anything is accepted; asked for exactly, the prompt is answered."""
    async with pruning(limit_s=0.5) as model:
        with pytest.raises(SessionFailed, match=r"0\.6 s with all attention heads left out.*--t-max") as refused:
            await finished(model, request())
        assert refused.value.code == Code.INVALID_REQUEST
        assert (await finished(model, request(exact=True)))[2] == [0]


async def test_where_memory_is_full_of_other_sets_the_client_may_come_again(
    calibration: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the error of who is overloaded, before anything is accepted; asked for exactly, the prompt is answered, and
    once the others are through, pruned."""
    async with pruning() as model:
        assert isinstance(model.pruner, LocalPruner)
        [stacks] = model.pruner._stacks
        monkeypatch.setattr(stacks, "_most_in_use", 1)
        spec = model.chain.parts.spec
        others = stacks.with_heads([KeptHeads((0,), spec.num_heads, spec.heads_per_group)] * spec.num_layers)
        with pytest.raises(SessionFailed, match="exact") as refused:
            await finished(model, request())
        assert (refused.value.code, refused.value.retry_after_s) == (Code.OVERLOADED, AGAIN_S)
        assert (await finished(model, request(exact=True)))[2] == [0]
        model.conversations.close()
        del others
        assert (await finished(model, request()))[2] != [0]


@pytest.mark.parametrize("by", ["liscore", "liscore-literal", "magnitude", "random"])
async def test_every_way_to_choose_heads_answers_alike_each_time(calibration: Calibration, by: str) -> None:
    """The same prompt loses the same heads, whether its scores are computed or found again, as many as need to go."""
    async with pruning(limit_s=1.9 if by.startswith("liscore") else LIMIT_S, by=by) as model:
        asked = request((*LONG, *LONG) if by.startswith("liscore") else LONG)
        first = await finished(model, asked)
        model.conversations.close()
        again = await finished(model, asked)
        assert first == again and first[2][0]


@pytest.mark.parametrize("split", [0, 2])
async def test_a_device_is_built_with_its_limit(calibration: Calibration, split: int) -> None:
    """What prompts take is measured on the device's own layers, in one stack or two."""
    drafts = {"split": split, "draft": ("lookup",)} if split else {}
    config = DeviceConfig(model=str(DEMO), mode="local", t_max=1e-9, max_model_len=32, **drafts)  # type: ignore[arg-type]
    device = build(config)
    try:
        pruner = device.writer.pruner
        assert isinstance(pruner, LocalPruner) and pruner.limit_s == 1e-9 and pruner.needs(2)
        with pytest.raises(LimitTooShort):
            pruner.prune([1] * 20, "")
    finally:
        device.stop()


@pytest.mark.parametrize(
    "more",
    [
        {"mode": "hat"},
        {"mode": "voltage", "group_key": "k" * 16},
        {"memory": "1GB"},
        {"mode": "tensor", "group_key": "k" * 16, "prune_by": "liscore"},
        {"t_max": math.nan},
        {"t_max": math.inf},
        {"t_max": -1.0},
    ],
)
def test_what_cannot_be_pruned_is_refused_before_anything_is_loaded(more: dict[str, Any]) -> None:
    """Layers in a cloud, rows that are shared, layers that do not stay in memory, scores of layers that are elsewhere;
    and what is no time."""
    settings: dict[str, Any] = {"mode": "local", "t_max": 1.0} | more
    with pytest.raises(ValueError, match=r"--t-max|--prune-by"):
        DeviceConfig(model="any", **settings)


async def test_without_a_limit_nothing_is_said_of_heads() -> None:
    """Nor is any left out."""
    async with served(None) as model:
        assert await finished(model, request()) == ([expected(model, LONG, TOKENS)], 0, [None])


def test_prompts_are_measured_as_far_as_the_model_reads_and_time_allows(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without heads, in the chunks in which prompts are run; a clock on which each look takes two seconds ends
    it behind the shortest length at which products, and not the reading of weights, take the time."""
    reference = Reference.load(tiny)
    layers = Layers(reference.embedding, (reference.stack,), reference.head)
    ticks = iter(range(1000))
    found = measured_costs(layers, layers, 100, lambda: 2.0 * next(ticks))
    assert found == PassCosts((1, 16, 64), (2.0,) * 3, (2.0,) * 3)
    ticks, ran = iter(range(1000)), list[int]()
    run = reference.stack.forward

    def forward(hidden: torch.Tensor, *more: Any) -> torch.Tensor:
        ran.append(len(hidden))
        return run(hidden, *more)

    monkeypatch.setattr(reference.stack, "forward", forward)
    found = measured_costs(layers, layers, 100, lambda: next(ticks) * 1e-3, chunk=40)
    assert found.rows == (1, 16, 64, 100)
    assert ran[-3:] == [40, 40, 20]


def test_a_calibration_is_kept_and_a_broken_file_is_made_anew(calibration: Calibration, tmp_path: Path) -> None:
    """What was made once is read; where its file is damaged it is made again."""
    digest = identity(Checkpoint.open(DEMO))

    def never() -> Calibration:
        raise AssertionError("it is there")

    again = kept_calibration(digest, "torch.float32", never)
    assert again.order == calibration.order and torch.equal(again.means, calibration.means)
    [kept] = (tmp_path / "trilby" / "pruning").iterdir()
    kept.write_bytes(b"nonsense")
    with pytest.raises(AssertionError, match="it is there"):
        kept_calibration(digest, "torch.float32", never)
    for name, shape in (("means", (3,)), ("means", ()), ("order", (4,)), ("order", (2, 2, 2))):
        broken = {name: torch.zeros(shape)}
        save_file({"means": calibration.means, "order": torch.tensor(again.order)} | broken, kept)
        assert kept_calibration(digest, "torch.float32", lambda: calibration) is calibration
