"""Groups whose members have less memory than their weights give transformers' greedy tokens in fp32, whatever fails."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from checkpoints import DEMO
from clouds import chain_over, demo_adapter, greedy, until
from groups import FORMED_WITHIN_S, PORTAL, group_here, hosted, member_here, members, plan_of, streamed
from oracle import oracle_tokens, prompt_for
from processes import free_port
from tiny_models import built

from device_agent.group.host import GroupHost
from device_agent.planning.plan import GroupPlan
from device_agent.sharing.compute import Compute
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import DraftingWay, DraftSettings
from drafting.choosing import Chooser
from split_model.checkpoint import Checkpoint
from split_model.sampling import SamplingParams
from split_model.submodel import Submodel

NAMES = ("one", "two", "three", "four")
CAUSAL = ("llama", "llama-biases", "mistral-window", "qwen2", "qwen3", "gpt2", "opt-post-norm")
SAMPLE = [("llama", 3, 1, 1), ("qwen3", 2, 2, 3), ("gpt2", 1, 1, 1), ("opt-post-norm", 4, 2, 1)]
TOKENS, PROMPT = 16, 70


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is repacked for a test goes with it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "trilby" / "units"


async def check(path: Path, submodel: Submodel, count: int = 1, prompt: int = PROMPT) -> None:
    """So many answers at once are transformers'."""
    compute = Compute()
    prompts = [prompt_for(path, prompt + 5 * seed, seed) for seed in range(count)]
    chain = chain_over(path, 0, 0, submodel, compute, 64)
    answers = await asyncio.gather(*(greedy(chain, list(each), TOKENS) for each in prompts))
    compute.stop()
    assert answers == [oracle_tokens(path, each, TOKENS) for each in prompts]


async def check_through(path: Path, submodel: Submodel, harm: Callable[[], object]) -> None:
    """The tokens of an answer, a third of which is there when ``harm`` is called, are transformers'."""
    compute, prompt = Compute(), prompt_for(path, PROMPT)
    session = chain_over(path, 0, 0, submodel, compute, 64).open(PROMPT + TOKENS)
    chooser = Chooser(SamplingParams(), list(prompt), 0, max_tokens=TOKENS)
    tokens: list[int] = []
    async for chosen in Generation(session, chooser, DraftingWay.of(None, DraftSettings())).run():
        tokens.append(chosen.token)
        if len(tokens) == TOKENS // 3:
            harm()
    session.close()
    compute.stop()
    assert tokens == oracle_tokens(path, prompt, TOKENS)


def planner(path: Path, share: int = 1, ring: int = 1, micro_batches: int = 2) -> Callable[..., GroupPlan]:
    """Plans an interleaved pipeline for whoever is there, every ``share``-th half layer streamed."""
    spec = Checkpoint.open(path).spec

    def plan(_: object, there: Sequence[str]) -> GroupPlan:
        return streamed(plan_of(spec, "interleaved", there, micro_batches=micro_batches), spec, share, ring)

    return plan


def one_family(name: str, count: int, share: int, ring: int, folder: Path) -> tuple[Path, GroupPlan]:
    """A tiny model, and a plan for so many members, the portal the last of them where it is not alone."""
    path = built(name, folder)
    return path, planner(path, share, ring)(None, (*NAMES[: count - 1], PORTAL))


@pytest.mark.parametrize(("name", "count", "share", "ring"), SAMPLE)
async def test_a_sample_of_families(name: str, count: int, share: int, ring: int, tiny_folder: Path) -> None:
    """Some families with 1 to 4 members, of which each holds half of its weights or none; three answers at once."""
    path, plan = one_family(name, count, share, ring, tiny_folder)
    with group_here(path, plan) as group:
        await check(path, group, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize(("share", "ring"), [(1, 1), (2, 1), (1, 3), (3, 2), (1, 50)])
async def test_every_family(name: str, count: int, share: int, ring: int, tiny_folder: Path) -> None:
    """All causal families, all sizes of groups, rings for one unit up to all of a stage."""
    path, plan = one_family(name, count, share, ring, tiny_folder)
    with group_here(path, plan) as group:
        await check(path, group, 3)


@asynccontextmanager
async def processes(
    path: Path, folder: Path, count: int, first: int = 0, **more: Any
) -> AsyncIterator[tuple[GroupHost, dict[str, Any]]]:
    """A formed group of real members."""
    port = free_port()
    async with AsyncExitStack() as stack:
        started = stack.enter_context(members(path, NAMES[:count], port, folder))
        host = await stack.enter_async_context(hosted(path, "", NAMES[:count], port=port, first=first, **more))
        await asyncio.wait_for(host.formed.wait(), FORMED_WITHIN_S)
        yield host, started


@pytest.mark.system
async def test_a_member_is_killed(tmp_path: Path) -> None:
    """One of three processes, in the midst of an answer: the others stream what it had, and the tokens are the same.
    What each one streams can be seen, and how much of it nobody waited for."""
    async with processes(DEMO, tmp_path, 3, planner=planner(DEMO, ring=3)) as (host, started):
        await check(DEMO, host.submodel, 2)
        await until(lambda: all(each.hidden is not None for each in host.state().members))
        assert all("attention" in each.streamed and each.streamed_mb for each in host.state().members)
        await check_through(DEMO, host.submodel, lambda: started["two"].process.kill())
        assert {each.name for each in host.state().members if each.state == "working"} == {"one", "three"}


@pytest.mark.system
async def test_drafts_are_verified(tmp_path: Path) -> None:
    """With the demo model's adapter and two layers at the portal: transformers' tokens."""
    compute, prompt = Compute(), prompt_for(DEMO, PROMPT)
    spec, first = Checkpoint.open(DEMO).spec, 2

    def plan(_: object, there: Sequence[str]) -> GroupPlan:
        made = plan_of(spec, "interleaved", there, layers=spec.num_layers - first)
        return streamed(made, spec)

    async with processes(DEMO, tmp_path, 2, first, planner=plan) as (host, _):
        chain = chain_over(DEMO, first, 0, host.submodel, compute, 64)
        tokens = await greedy(chain, list(prompt), TOKENS, demo_adapter(chain, first))
    compute.stop()
    assert tokens == oracle_tokens(DEMO, prompt, TOKENS)


async def test_long_drafts_of_several_sessions() -> None:
    """Two answers at once, each drafted far past what counts as a short step where all weights stay: transformers'
    tokens."""
    compute, first = Compute(), 2
    spec = Checkpoint.open(DEMO).spec
    plan = streamed(plan_of(spec, "interleaved", ("one", PORTAL), layers=spec.num_layers - first), spec, 5, 2)
    prompts = [prompt_for(DEMO, 20, seed) for seed in range(2)]
    with group_here(DEMO, plan, first=first) as group:
        chain = chain_over(DEMO, first, 0, group, compute, 64)
        settings = DraftSettings(draft_length="fixed", draft_threshold=0.0, draft_cap=24)
        way = DraftingWay.of(demo_adapter(chain, first), settings)

        async def answer(prompt: tuple[int, ...]) -> list[int]:
            session = chain.open(len(prompt) + 2 * TOKENS, drafter=way.drafter)
            chooser = Chooser(SamplingParams(), list(prompt), 0, max_tokens=2 * TOKENS)
            try:
                return [chosen.token async for chosen in Generation(session, chooser, way).run()]
            finally:
                session.close()

        found = await asyncio.gather(*map(answer, prompts))
    compute.stop()
    assert found == [oracle_tokens(DEMO, each, 2 * TOKENS) for each in prompts]
    assert way.tally.proposed > 16 * way.tally.rounds


def harm_files(folder: Path, harm: str) -> None:
    """What a disk may do to all files."""
    for file in [each for each in folder.rglob("*") if each.is_file()]:
        if harm == "short":
            os.truncate(file, 5000)
        else:
            file.unlink()


@pytest.mark.parametrize("harm", ["short", "gone"])
async def test_a_disk_that_fails_costs_no_token(harm: str, own_cache: Path, tiny_folder: Path) -> None:
    """Files are cut short, or are gone with their folder, in the midst of an answer: whoever cannot read says so and
    which file, the group is formed anew, the files are made again, and the tokens are the same."""
    path = built("llama", tiny_folder)
    async with (
        hosted(path, "", ("one", PORTAL), planner=planner(path)) as host,
        member_here(path, "one", host.listens.result()),
    ):
        await until(host.formed.is_set)
        await check(path, host.submodel)
        epoch = host.state().epoch
        await check_through(path, host.submodel, lambda: harm_files(own_cache, harm))
        assert host.state().epoch > epoch or harm == "gone"  # Who has a file open can read it to its end.
        await check(path, host.submodel)
