"""Members that stream more as keys and values grow, and less when sessions close: tokens stay transformers'."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from clouds import chain_over, greedy, until
from groups import PORTAL, group_here, hosted, member_here, plan_of, streamed
from oracle import oracle_tokens, prompt_for
from peers_together import fabrics
from submodel_conformance import check_submodel, rows

from device_agent.group.formation.joining import Part
from device_agent.group.host import GroupHost
from device_agent.group.messages.heads import CloseHead, ForkHead, OpenHead, RowsHead, TruncateHead
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.shape import ModelShape
from device_agent.planning.thresholds import SPARE, thresholds_of, token_bytes
from device_agent.sharing.compute import Compute
from split_model.checkpoint import Checkpoint
from split_model.kv_cache import CacheFull
from split_model.offload.errors import DiskFull, ReadFailed
from split_model.slices import Slice
from split_model.spec import ModelSpec
from split_model.stack import Span, Stack
from wire.errors import Code, SessionFailed

NAMES = ("one", PORTAL)
TOKENS = 180
"""For so many each member has memory at first; the tiny models end at 256 positions."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is repacked for a test goes with it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def growing(spec: ModelSpec, names: Sequence[str], tokens: int = TOKENS, share: int = 0, batches: int = 1) -> GroupPlan:
    """Two segments, a ring for one unit or more, memory for so many tokens; at first every ``share``-th half layer is
    streamed, or none."""
    plan = streamed(plan_of(spec, "interleaved", names, micro_batches=batches), spec, share or 1)
    shape = ModelShape.of(spec, "float32")
    layers = [sum(layer == Whole(member) for layer in plan.layers) for member in range(len(names))]
    room = tuple(tokens * token_bytes(shape, count) for count in layers)
    return replace(plan, streamed=plan.streamed if share else ((),) * len(names), cache_bytes=room)


def portal_streams(host: GroupHost) -> str:
    """What the group says of its portal."""
    return next(each.streamed for each in host.state().members if each.name == PORTAL)


@pytest.mark.parametrize(("share", "batches"), [(0, 1), (3, 2)])
async def test_tokens_are_transformers_across_thresholds_and_a_loss(share: int, batches: int, tiny: Path) -> None:
    """One long answer crosses two thresholds at least; a short one behind it has all kept again; and of another long
    one a member is lost behind a threshold."""
    spec, compute = Checkpoint.open(tiny).spec, Compute()
    long, short = prompt_for(tiny, 20), prompt_for(tiny, 8, seed=3)

    def planner(_: object, names: Sequence[str]) -> GroupPlan:
        return growing(spec, names, share=share, batches=batches)

    async with hosted(tiny, "", NAMES, planner=planner) as host, AsyncExitStack() as stack:
        member = await stack.enter_async_context(member_here(tiny, "one", host.listens.result()))
        await until(host.formed.is_set)
        chain, first = chain_over(tiny, 0, 0, host.submodel, compute, 256), portal_streams(host)
        thresholds = thresholds_of(ModelShape.of(spec, "float32"), growing(spec, NAMES, share=share), 1)
        assert thresholds.level(20 + SPARE) == 0 and thresholds.level(250) >= 2 and thresholds.most >= 250
        assert await greedy(chain, list(long), 230) == oracle_tokens(tiny, long, 230)
        assert portal_streams(host).count("mlp") and portal_streams(host) != first
        assert await greedy(chain, list(short), 5) == oracle_tokens(tiny, short, 5)
        assert portal_streams(host) == first
        again = asyncio.create_task(greedy(chain, list(long), 230))
        await until(lambda: portal_streams(host) != first)
        member.cancel()
        assert await again == oracle_tokens(tiny, long, 230)
        await until(lambda: len([each for each in host.state().members if each.state == "working"]) == 1)
    compute.stop()


async def test_a_group_that_counts_its_tokens_conforms(tiny: Path) -> None:
    """Forks, truncations and all: as any other submodel."""
    checkpoint = Checkpoint.open(tiny)
    stack = Stack.load(checkpoint, Slice(0, checkpoint.spec.num_layers), torch.float32)
    with group_here(tiny, growing(checkpoint.spec, NAMES, tokens=600)) as group:
        await check_submodel(group, stack)


def test_a_disk_without_room_for_what_may_be_streamed_is_said_beforehand(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the first session that needs it, with which the group would be lost, again and again."""
    checkpoint, asked = Checkpoint.open(tiny), os.statvfs

    def full(path: Path) -> os.statvfs_result:
        found = asked(path)
        return os.statvfs_result((*found[:3], 0, 0, *found[5:]))

    part = Part(JoinedPlan.of(growing(checkpoint.spec, (PORTAL,)), "", "float32", 0, 0), checkpoint, 0)
    with monkeypatch.context() as broken, pytest.raises(DiskFull):
        broken.setattr(os, "statvfs", full)
        part.load()
    with monkeypatch.context() as broken, pytest.raises(ReadFailed, match="cannot be written"):
        broken.setattr(Path, "mkdir", Mock(side_effect=PermissionError("a test")))
        part.load()
    assert part.load()
    part.kept.close()


def test_memory_stays_within_what_is_counted(tiny: Path) -> None:
    """Weights, keys and values, and one layer's of them more, in each state of three sessions that grow, are cut back,
    are copied and close: never above what the plan has for them. Rows are those of a stack with all weights. Beyond
    the last threshold a step is refused."""
    checkpoint = Checkpoint.open(tiny)
    spec = checkpoint.spec
    everything = Stack.load(checkpoint, Slice(0, spec.num_layers), torch.float32)
    plan = growing(spec, (PORTAL,), tokens=280)
    joined = JoinedPlan.of(plan, "", "float32", 0, 0)
    levels = []
    with fabrics(1) as [fabric]:
        part = Part(joined, checkpoint, 0)
        worker = part.worker(part.load(), fabric)
        budget = part.kept.loaded_bytes("", "float32") + plan.cache_bytes[0]

        def check() -> None:
            caches = sum(session.nbytes for session in worker._sessions.values())
            most = max((session.nbytes for session in worker._sessions.values()), default=0)
            assert part.kept.loaded_bytes("", "float32") + caches + most // spec.num_layers <= budget
            levels.append(worker.relief)

        def step(session: int, position: int, count: int) -> torch.Tensor:
            output = worker.do(
                RowsHead(session, position, count, 1), rows(256, spec.hidden_size, session)[position:][:count]
            )
            assert output is not None
            check()
            return output

        def expected(session: int, count: int) -> torch.Tensor:
            cache = everything.new_cache(256)
            return everything.forward(rows(256, spec.hidden_size, session)[:count], [Span(cache, count)])[-1:]

        def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)

        for number in (1, 2):
            worker.do(OpenHead(number, 256))
        step(1, 0, 100)
        for position in range(100, 130):
            found = step(1, position, 1)
        same(found, expected(1, 130))
        same(step(2, 0, 60), expected(2, 60))
        assert max(levels) >= 2
        worker.do(TruncateHead(1, 12))
        check()
        worker.do(ForkHead(3, 2, 5, 256))
        check()
        worker.do(CloseHead(2))
        same(step(1, 12, 1), expected(1, 13))
        assert levels[-1] < max(levels)
        worker.do(CloseHead(3))
        same(step(1, 13, 1), expected(1, 14))
        step(1, 14, 1)
        assert levels[-1] == 0 and not part.kept.streamed
        worker.do(OpenHead(4, 10_000))
        with pytest.raises(CacheFull, match="whatever is streamed"):
            step(4, 0, 4000)
        part.kept.close()


async def test_who_finds_no_room_is_told_and_parked_sessions_give_way(tiny: Path) -> None:
    """Two sessions do not fit. While the first works the second is refused, by a typed error; once it is parked members
    forget it for another, be it its own fork, and it goes on later with the rows of one that was never away."""
    checkpoint = Checkpoint.open(tiny)
    stack = Stack.load(checkpoint, Slice(0, checkpoint.spec.num_layers), torch.float32)
    plan = replace(growing(checkpoint.spec, NAMES, tokens=260), ring_bytes=(0, 0))
    hidden = rows(150, checkpoint.spec.hidden_size, 1)
    with group_here(tiny, plan) as group:
        first = group.open(256)
        await asyncio.wait_for(first.forward(hidden[:100], 1), 30)
        with pytest.raises(SessionFailed) as refused:
            group.open(256, prompt=100)
        assert refused.value.code is Code.TOKEN_LIMIT
        second = group.open(256)
        with pytest.raises(SessionFailed, match="try again later"):
            await asyncio.wait_for(second.forward(hidden[:40], 1), 30)
        for more in (lambda: second.truncate(0), lambda: second.fork(0), second.park):
            with pytest.raises(SessionFailed, match="try again later"):
                more()  # Members know it no more, and would end the life of all.
        first.park()
        expected = stack.forward(hidden, [Span(stack.new_cache(256), 150)])
        fork = first.fork(100)
        assert first.away
        found = await asyncio.wait_for(fork.forward(hidden[100:109], 9), 30)
        torch.testing.assert_close(found, expected[100:109], atol=1e-4, rtol=0)
        fork.close()
        third = group.open(256, prompt=100)
        await asyncio.wait_for(third.forward(hidden[:100], 1), 30)
        third.close()
        first.truncate(90)
        fork = first.fork(90)
        found = await asyncio.wait_for(fork.forward(hidden[90:99], 9), 30)
        torch.testing.assert_close(found, expected[90:99], atol=1e-4, rtol=0)
        fork.close()
        found = await asyncio.wait_for(first.forward(hidden[90:], 60), 30)
        torch.testing.assert_close(found, expected[90:], atol=1e-4, rtol=0)
        first.close()
