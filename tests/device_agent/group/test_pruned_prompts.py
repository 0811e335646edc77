"""Prompts that a group reads without some heads: only where it was allowed, as far as needed, whoever has them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import torch
from checkpoints import DEMO
from clouds import until
from group_plans import profile
from groups import NAMES, PORTAL, Started, group_here, hosted, member_here, plan_of, submodel_for
from masked_heads import replaced
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
from served_chains import expected, served
from transformers import AutoModelForCausalLM

from device_agent.answering.answer import ServedChain
from device_agent.build_group import PortalGroup
from device_agent.chain.group_costs import GroupCosts
from device_agent.chain.group_pruning import MOST_IN_USE, GroupOrder, GroupPruner, group_order
from device_agent.chain.model_ends import DeviceParts
from device_agent.chain.pass_costs import lengths
from device_agent.chain.prefill import prefill
from device_agent.chain.pruning import PrunedLayers
from device_agent.group.asking.life import GroupLife
from device_agent.group.asking.submodel import GroupSubmodel
from device_agent.planning.copies import attention_copies
from device_agent.planning.head_allocation import HeadTimes
from device_agent.planning.head_times import planned_times
from device_agent.planning.plan import Whole
from device_agent.planning.pruning import PassCosts
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Task, Work
from split_model.checkpoint import Checkpoint
from split_model.pruning.calibration import Calibration
from split_model.pruning.kept import KeptHeads, count_pruned
from split_model.pruning.stack import NoRoomForSets
from wire.errors import Code, SessionFailed
from wire.messages import AnyMessage
from wire.request_messages import Delta

CHECKPOINT = Checkpoint.open(DEMO)
SPEC = CHECKPOINT.spec
GROUPS = SPEC.num_kv_heads
UNEVEN = HeadTimes(((0.0, 0.1), (0.0, 1.0), (0.0,)), 0.0)
"""Of two members with a KV group each the first is ten times as fast, and the third has none."""

Times = Callable[[], Sequence[HeadTimes] | None]


@pytest.fixture
def calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calibration:
    """One that is kept already."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return some_calibration()


async def costs_told(life: GroupLife, bare: PrunedLayers) -> PassCosts:
    """Whatever the members take."""
    return ROWS_10_MS


async def soon() -> None:
    """There may be news."""
    await asyncio.sleep(0.01)


@asynccontextmanager
async def pruning(
    group: GroupSubmodel,
    found: GroupOrder,
    times: Times,
    limit_s: float = LIMIT_S,
    split: int = 0,
    copies: float = MOST_IN_USE,
) -> AsyncIterator[ServedChain]:
    """The demo model as a device serves it whose group may leave heads out."""
    async with served(group, split=split) as model:
        compute, parts = model.chain.compute, model.chain.parts
        about = CHECKPOINT, parts, group, compute, found, limit_s, 1024
        pruner = GroupPruner(*about, times, soon, costs_told, copies=lambda: copies)
        assert not pruner.needs(1 << 20)
        measuring = asyncio.create_task(pruner.run())
        try:
            yield dataclasses.replace(model, pruner=pruner)
        finally:
            measuring.cancel()
            await asyncio.gather(measuring, return_exceptions=True)


@asynccontextmanager
async def in_a_group(
    found: GroupOrder, form: str, times: Sequence[HeadTimes] = (), limit_s: float = LIMIT_S, split: int = 0
) -> AsyncIterator[ServedChain]:
    """The same in a group of three that is measured."""
    plan = plan_of(SPEC, form, ("one", PORTAL, "three"), (2.0, 1.0, 1.0), SPEC.num_layers - split)
    taken = times or [planned_times(None, layer, GROUPS, 3) for layer in (*[Whole(0)] * split, *plan.layers)]
    group = submodel_for(CHECKPOINT, split)
    async with pruning(group, found, lambda: taken, limit_s, split) as model:
        with group_here(DEMO, plan, split, submodel=group):
            await until(lambda: needs(model))
            yield model


def needs(model: ServedChain) -> bool:
    """Whether there are prompts that need to lose heads."""
    assert model.pruner is not None
    return model.pruner.needs(1 << 20)


def left_out(model: ServedChain, ids: tuple[int, ...] = LONG) -> PrunedLayers:
    """What a prompt loses."""
    assert model.pruner is not None
    found = model.pruner.prune(ids, "")
    assert 0 < found.count < SPEC.num_layers * SPEC.num_heads
    return found


@pytest.mark.parametrize(
    ("form", "split"),
    [("edgeformer", 2), *(pytest.param(form, 0, marks=pytest.mark.slow) for form in ("tensor", "galaxy-1", "lent"))],
)
async def test_long_prompts_lose_as_many_heads_as_they_must(calibration: Calibration, form: str, split: int) -> None:
    """A long prompt's answer is that of the model without the heads that have no time, each choice's, and its logits
    are within 1e-4 of transformers' where these heads give their means. Short prompts, and whoever asks for exactness,
    have transformers' tokens."""
    found = GroupOrder(calibration.order, calibration.means)
    async with in_a_group(found, form, split=split) as model:
        pruned = left_out(model)
        wanted = without_heads(model, pruned.sets, calibration.means, LONG)
        assert wanted != expected(model, LONG, TOKENS)
        assert await finished(model, request(n=2)) == ([wanted] * 2, 0, [pruned.count] * 2)
        assert await finished(model, request(exact=True)) == ([expected(model, LONG, TOKENS)], 0, [0])
        assert await finished(model, request(SHORT)) == ([expected(model, SHORT, TOKENS)], 0, [0])
        session = model.chain.open(len(LONG), len(LONG), pruned=pruned)
        logits = model.chain.parts.head.forward(await prefill(session, list(LONG), 8))
        session.close()
    whole = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32, attn_implementation="eager").eval()
    with replaced(whole, pruned.sets, calibration.means), torch.inference_mode():
        torch.testing.assert_close(logits, whole(torch.tensor([LONG])).logits[0, -8:], rtol=0, atol=1e-4)


async def test_the_fast_member_computes_what_is_left(calibration: Calibration) -> None:
    """Of a layer that has time for one KV group the more important one, whoever has its weights; nothing stands for the
    others where nothing is known of them."""
    found = GroupOrder(calibration.order, None)
    async with in_a_group(found, "tensor", [UNEVEN] * SPEC.num_layers) as model:
        pruned = left_out(model)
        assert pruned.placing is not None
        once = [
            (kept.groups, counts)
            for kept, counts in zip(pruned.sets, pruned.placing.places, strict=True)
            if len(kept.groups) == 1
        ]
        assert {groups for groups, _ in once} == {(0,), (1,)} and {counts for _, counts in once} == {(1, 0, 0)}
        wanted = without_heads(model, pruned.sets, torch.zeros_like(calibration.means), LONG)
        assert await finished(model, request()) == ([wanted], 0, [pruned.count])
        others: list[PrunedLayers] = []
        with pytest.raises(NoRoomForSets, match="other heads"):
            others.extend(left_out(model, LONG[:1] * rows) for rows in range(82, 124))
        assert len({each.sets for each in others}) > 1
        del pruned, others
        left_out(model, LONG[:1] * 123)


async def test_members_without_room_copy_one_set_at_a_time(calibration: Calibration) -> None:
    """Whatever a life began with: what is under way when the next begins counts there too."""
    found = GroupOrder(calibration.order, None)
    plan = plan_of(SPEC, "tensor", ("one", PORTAL, "three"), (2.0, 1.0, 1.0))
    group, times = submodel_for(CHECKPOINT), [planned_times(None, layer, GROUPS, 3) for layer in plan.layers]
    async with pruning(group, found, lambda: times, copies=0.1) as model:
        with group_here(DEMO, plan, submodel=group):
            await until(lambda: needs(model))
            pruned = left_out(model)
            assert left_out(model) is pruned
            with pytest.raises(NoRoomForSets):
                for rows in range(82, 124):
                    left_out(model, LONG[:1] * rows)
        group.pause()
        with group_here(DEMO, plan, submodel=group):
            await until(lambda: needs(model))
            with pytest.raises(NoRoomForSets):
                left_out(model, LONG[:1] * 120)
            del pruned
            left_out(model, LONG[:1] * 120)


def test_copies_are_counted_beside_what_a_plan_takes() -> None:
    """By the member with the least room, none where there is none."""
    names, shape = ("a", "b"), ModelShape.of(SPEC, "float32")
    plan = dataclasses.replace(plan_of(SPEC, "tensor", names), portal="c")
    attention = 4 * sum(sum(shape.matrices("attention", range(GROUPS // 2), at)) for at in range(SPEC.num_layers))
    for spare, copies in ((attention * 5 // 2, 2.5), (0, 0.0)):
        task = Task(shape, profile(shape, [1e9] * 3, 1e9), names, "c", Work(32, 8))
        least = [task.held(plan)[name].total + spare for name in (*names, "c")]
        task = Task(shape, profile(shape, [1e9] * 3, 1e9, memory=least), names, "c", Work(32, 8))
        assert attention_copies(task, plan) == pytest.approx(copies, rel=1e-6)


async def test_exact_and_pruned_requests_at_once(calibration: Calibration) -> None:
    """Those that leave heads out take steps of their own, and nobody's answer changes by the others'."""
    found = GroupOrder(calibration.order, calibration.means)
    async with in_a_group(found, "edgeformer") as model:
        pruned = left_out(model)
        wanted = without_heads(model, pruned.sets, calibration.means, LONG)
        whole, short = expected(model, LONG, TOKENS), expected(model, SHORT, TOKENS)
        asked = [request(), request(exact=True), request(SHORT), request(), request(LONG, exact=True, tenant="other")]
        said = await asyncio.gather(*(finished(model, each) for each in asked))
        assert [tokens for [tokens], _, _ in said] == [wanted, whole, short, wanted, whole]
        assert [heads for _, _, [heads] in said] == [pruned.count, 0, 0, pruned.count, 0]


async def test_a_limit_that_no_pruning_reaches_is_refused_with_the_floor(calibration: Calibration) -> None:
    """Before anything is accepted; asked for exactly, the prompt is answered."""
    async with in_a_group(GroupOrder(calibration.order, None), "tensor", limit_s=0.5) as model:
        with pytest.raises(SessionFailed, match=r"0\.6 s with all attention heads left out.*--t-max") as refused:
            await finished(model, request())
        assert refused.value.code == Code.INVALID_REQUEST
        assert (await finished(model, request(exact=True)))[2] == [0]


async def test_what_prompts_take_is_measured_while_nobody_waits(calibration: Calibration) -> None:
    """With all heads and with none, as far as the model reads; not beside an answer, and not of a life that is over."""
    plan = plan_of(SPEC, "tensor", ("one", PORTAL), (1.0, 1.0))
    group = submodel_for(CHECKPOINT)
    async with served(group, split=0) as model:
        parts, lane = model.chain.parts, model.chain.compute.lane()
        costs = GroupCosts(parts, group, lane, 40)
        sets = (KeptHeads((), SPEC.num_heads, SPEC.heads_per_group),) * SPEC.num_layers
        bare = PrunedLayers(sets, parts.front, None, parts.back, sets)
        with group_here(DEMO, plan, submodel=group):
            life = group.life
            assert life is not None
            found = await asyncio.wait_for(costs.measured(life, bare), 60)
            assert found is not None and list(found.rows) == lengths(40) == [1, 16, 40]
            assert min(*found.whole_s, *found.bare_s) > 0
        group.pause()
        answer = group.open(8).forward(torch.zeros(8, SPEC.hidden_size), 1)  # Nobody is there who would answer.
        assert group.busy and await costs.measured(life, bare) is None
        with group_here(DEMO, plan, submodel=group):
            assert group.life is not None
            measuring = asyncio.create_task(costs.measured(group.life, bare))
            await asyncio.wait_for(answer, 30)
            assert await asyncio.wait_for(measuring, 60) is not None
            assert group.life.steps[0] == (8, 0)


@pytest.mark.slow
async def test_a_group_that_is_never_idle_is_measured_between_steps(
    calibration: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sessions ask again as soon as they are answered. Passes go between their steps, and they go on between
    passes, with the outputs that they have alone."""
    monkeypatch.setattr("device_agent.chain.group_costs.PATIENCE_S", 0.05)
    plan, group = plan_of(SPEC, "tensor", ("one", PORTAL), (1.0, 1.0)), submodel_for(CHECKPOINT)
    rows = torch.randn((2, SPEC.hidden_size), generator=torch.Generator().manual_seed(1))
    outputs: list[list[torch.Tensor]] = [[], []]
    async with served(group, split=0) as model:
        parts, lane = model.chain.parts, model.chain.compute.lane()
        sets = (KeptHeads((), SPEC.num_heads, SPEC.heads_per_group),) * SPEC.num_layers
        bare = PrunedLayers(sets, parts.front, None, parts.back, sets)

        async def ask(number: int) -> None:
            session = group.open(8)
            while True:
                outputs[number].append(await session.forward(rows[number : number + 1], 1))
                session.truncate(0)

        with group_here(DEMO, plan, submodel=group):
            assert group.life is not None
            asking = [asyncio.create_task(ask(number)) for number in range(2)]
            found = await asyncio.wait_for(GroupCosts(parts, group, lane, 40).measured(group.life, bare), 60)
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            steps = list(group.life.steps)
    assert found is not None and list(found.rows) == [1, 16, 40]
    assert {count for count, _ in steps} >= {1, 16, 40}
    for said in outputs:
        assert len(said) > 20
        torch.testing.assert_close(torch.stack(said), said[0].expand(len(said), 1, -1), rtol=0, atol=1e-5)


async def test_it_is_said_what_a_limit_of_time_does(calibration: Calibration) -> None:
    """Nothing before a life has begun; that none is left out while it is measured, or where the plan cannot; then
    which prompts lose heads, which is told at once."""
    told: list[str] = []
    measured = asyncio.Event()

    async def costs(life: GroupLife, bare: PrunedLayers) -> PassCosts:
        await measured.wait()
        return ROWS_10_MS

    group = submodel_for(CHECKPOINT)
    plan = plan_of(SPEC, "tensor", ("one", PORTAL), (1.0, 1.0))
    times = [planned_times(None, layer, GROUPS, 2) for layer in plan.layers]
    async with served(group, split=0) as model:
        parts, found = model.chain.parts, GroupOrder(calibration.order, None)
        about = CHECKPOINT, parts, group, model.chain.compute, found, LIMIT_S, 1024, lambda: times, soon, costs
        pruner = GroupPruner(*about, lambda: told.append(pruner.words))
        assert pruner.words == ""
        running = asyncio.create_task(pruner.run())
        with group_here(DEMO, plan, submodel=group):
            assert pruner.words == "no head is left out until it is measured what prompts take" and not told
            measured.set()
            await until(lambda: bool(told))
        group.pause()
        assert told[0].startswith("prompts of 81 tokens or more lose heads") and not pruner.words
        with group_here(DEMO, plan_of(SPEC, "voltage", ("one", PORTAL)), submodel=group):
            assert "leaves no heads out" in pruner.words
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_an_order_is_found_with_all_layers_here_and_without(calibration: Calibration, tmp_path: Path) -> None:
    """What is kept is taken, whatever the memory; where nothing is and there is no room, the weights' sizes say it."""
    parts = DeviceParts.load(CHECKPOINT, 0, 0, torch.float32)
    found = group_order(CHECKPOINT, parts, torch.float32, budget=1)
    assert found.order == calibration.order and found.means is not None
    by_size = group_order(CHECKPOINT, parts, torch.float32, "magnitude", budget=1)
    [kept] = (tmp_path / "trilby" / "pruning").iterdir()
    kept.unlink()
    assert group_order(CHECKPOINT, parts, torch.float32, budget=1) == GroupOrder(by_size.order, None)


async def check_a_death(model: ServedChain, means: torch.Tensor, kill: Callable[[], object]) -> None:
    """After the third piece of a pruned answer a member goes: the others go on without the same heads. Then they are
    measured, and prompts lose heads again."""
    await until(lambda: needs(model))
    sets, pieces = left_out(model).sets, 0

    def hear(message: AnyMessage) -> None:
        nonlocal pieces
        pieces += isinstance(message, Delta)
        if isinstance(message, Delta) and pieces == 3:
            kill()

    found = await asyncio.wait_for(finished(model, request(max_tokens=20), hear), 60)
    assert found == ([without_heads(model, sets, means, LONG, 20)], 0, [count_pruned(sets)]) and pieces > 3
    await until(lambda: needs(model))
    pruned = left_out(model)
    wanted = without_heads(model, pruned.sets, means, LONG)
    assert await asyncio.wait_for(finished(model, request()), 60) == ([wanted], 0, [pruned.count])


async def test_a_member_dies_while_a_pruned_answer_is_written(calibration: Calibration) -> None:
    """Of three that share heads, the portal among them; what is planned then has other places."""
    found = GroupOrder(calibration.order, calibration.means)
    async with hosted(DEMO, "tensor", 3) as host, AsyncExitStack() as stack:
        times = PortalGroup(host).head_times
        model = await stack.enter_async_context(pruning(host.submodel, found, times))
        port = host.listens.result()
        one, _ = [await stack.enter_async_context(member_here(DEMO, name, port)) for name in NAMES[:2]]
        await check_a_death(model, calibration.means, one.cancel)


@pytest.mark.slow
async def test_a_process_dies_while_a_pruned_answer_is_written(calibration: Calibration, tmp_path: Path) -> None:
    """The same where members are processes that lend one another heads."""
    found, started = GroupOrder(calibration.order, calibration.means), Started(tmp_path)
    try:
        names = started.have(DEMO, 3)
        async with AsyncExitStack() as stack:
            host = await stack.enter_async_context(hosted(DEMO, "edgeformer", names, port=started.port))
            times = PortalGroup(host).head_times
            model = await stack.enter_async_context(pruning(host.submodel, found, times))
            process = started.processes[names[1]].process
            assert process is not None
            await check_a_death(model, calibration.means, process.kill)
    finally:
        started.end()
