"""Prompts that are read without some heads: only where it was allowed, as far as needed, and for the whole answer."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from checkpoints import DEMO
from clouds import local_middle
from oracle import prompt_for
from served_chains import DRAFTLESS, expected, served

from device_agent.answering.answer import ServedChain, answer
from device_agent.answering.pruned import AGAIN_S
from device_agent.build import build
from device_agent.chain.local import LocalSubmodel
from device_agent.chain.pass_costs import measured_costs
from device_agent.chain.pruning import Pruner
from device_agent.config import DeviceConfig
from device_agent.planning.pruning import LimitTooShort, PassCosts, PruningPlan
from device_agent.sharing.compute import Compute
from device_agent.speculative.drafters import Drafters
from drafting.lookup import LookupDrafter
from split_model.checkpoint import Checkpoint
from split_model.hub import identity
from split_model.pruning.calibration import Calibration
from split_model.pruning.kept import KeptHeads, count_pruned
from split_model.pruning.kept_calibration import kept_calibration
from split_model.pruning.orders import by_chance
from split_model.pruning.stack import PrunedStacks
from split_model.pruning.watched import Layers
from split_model.reference import Reference, written
from split_model.stack import Span
from wire.errors import Code, SessionFailed
from wire.messages import AnyMessage
from wire.request_messages import Delta, Done, Finished, Generate, Sampling

LONG, SHORT = prompt_for(DEMO, 100), prompt_for(DEMO, 30)
TOKENS = 8
LIMIT_S = 0.8
"""For which a prompt of 100 tokens has to lose some heads, and one of 30 none, where a row takes 10 ms."""

ROWS_10_MS = PassCosts((1, 101), (0.01, 1.01), (0.006, 0.606))


def request(ids: tuple[int, ...] = LONG, **changed: Any) -> Generate:
    """A greedy answer to these."""
    sampling = Sampling(temperature=0.0)
    asked = Generate(1, "id", "demo", "", list(ids), 1, TOKENS, ignore_eos=True, logprobs=0, sampling=sampling)
    return msgspec.structs.replace(asked, **changed)


@pytest.fixture
def calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calibration:
    """One that is kept already."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    checkpoint = Checkpoint.open(DEMO)
    spec = checkpoint.spec
    means = torch.randn(spec.num_layers, spec.num_heads, spec.head_dim, generator=torch.Generator().manual_seed(1))
    made = Calibration(means * 0.1, by_chance(spec.num_layers, spec.num_heads, seed=4))
    return kept_calibration(identity(checkpoint), "torch.float32", lambda: made)


@asynccontextmanager
async def pruning(limit_s: float = LIMIT_S, split: int | None = None, **more: Any) -> AsyncIterator[ServedChain]:
    """The demo model on this device, with its layers in one stack or in two."""
    compute = Compute()
    middle = None if split is None else local_middle(DEMO, split, 0, compute)
    drafters = Drafters({"lookup": LookupDrafter(), "none": None}, 0) if split is not None else DRAFTLESS
    async with served(middle, drafters, split=split, compute=compute) as model:
        between = middle.stack if isinstance(middle, LocalSubmodel) else None
        pruner = Pruner(Checkpoint.open(DEMO), model.chain.parts, between, limit_s, 1024, **more)
        await compute.lane().submit(lambda: pruner.prepare(lambda *about: ROWS_10_MS))
        yield dataclasses.replace(model, pruner=pruner)


async def finished(model: ServedChain, asked: Generate) -> tuple[list[bytes], int, list[int | None]]:
    """The bytes of each choice, tokens of the prompt that were cached, and the heads that each says were left out."""
    said: list[AnyMessage] = []
    await answer(model, asked, said.append)
    tokens = [b""] * asked.n
    for each in said:
        if isinstance(each, Delta):
            tokens[each.index] += b"".join(token.chosen.raw for token in each.logprobs or [])
    [done] = [each for each in said if isinstance(each, Done)]
    return tokens, done.cached_tokens, [each.heads_pruned for each in said if isinstance(each, Finished)]


def by_hand(model: ServedChain, found: Calibration, ids: tuple[int, ...]) -> tuple[bytes, int]:
    """What a model says whose heads are those that the limit leaves, and how many are missing."""
    reference = Reference.load(DEMO)
    spec = reference.spec
    plan = PruningPlan(found.order, spec.num_layers, spec.num_heads, spec.heads_per_group, ROWS_10_MS)
    sets = plan.within(len(ids), LIMIT_S)
    stack = PrunedStacks(reference.stack, Checkpoint.open(DEMO), 1 << 30, found.means).with_heads(sets)
    cache = stack.new_cache(len(ids) + TOKENS)

    def run(rows: Any) -> torch.Tensor:
        hidden = stack.forward(reference.embedding.forward(rows), [Span(cache, len(rows))])
        return reference.head.forward(hidden[-1:])[0]

    tokens = written(run, ids, TOKENS, None, ())
    return b"".join(model.tokenizer.piece(token)[1] for token in tokens), count_pruned(sets)


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
        assert model.pruner is not None
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
        assert pruner is not None and pruner.limit_s == 1e-9 and pruner.needs(2)
        with pytest.raises(LimitTooShort):
            pruner.prune([1] * 20, "")
    finally:
        device.stop()


@pytest.mark.parametrize("more", [{"mode": "hat"}, {"mode": "voltage", "group_key": "k" * 16}, {"memory": "1GB"}])
def test_what_cannot_be_pruned_is_refused_before_anything_is_loaded(more: dict[str, Any]) -> None:
    """Layers elsewhere, and layers that do not stay in memory."""
    with pytest.raises(ValueError, match="--t-max"):
        DeviceConfig(model="any", t_max=1.0, **({"mode": "local"} | more))


async def test_without_a_limit_nothing_is_said_of_heads() -> None:
    """Nor is any left out."""
    async with served(None) as model:
        assert await finished(model, request()) == ([expected(model, LONG, TOKENS)], 0, [None])


def test_prompts_are_measured_as_far_as_the_model_reads_and_time_allows(tiny: Path) -> None:
    """With and without heads; a clock on which each look takes two seconds ends it after the shortest lengths."""
    reference = Reference.load(tiny)
    layers = Layers(reference.embedding, (reference.stack,), reference.head)
    ticks = iter(range(1000))
    found = measured_costs(layers, layers, 100, lambda: 2.0 * next(ticks))
    assert found == PassCosts((1, 16), (2.0, 2.0), (2.0, 2.0))
    ticks = iter(range(1000))
    found = measured_costs(layers, layers, 100, lambda: next(ticks) * 1e-3)
    assert found.rows == (1, 16, 64, 100)


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
