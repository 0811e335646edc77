"""How steps pass through stages: in which micro-batches, and how many steps at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from groups import PORTAL, group_here, plan_of
from hypothesis import given
from hypothesis import strategies as st
from submodel_conformance import check_sessions, check_submodel
from tiny_models import built

from device_agent.group.messages.heads import BatchHead, ReadHead, RowsHead
from device_agent.group.steps.pipeline import UNCUT, Pipeline
from device_agent.planning.moves import Transfer
from device_agent.planning.plan import GroupPlan, Sharded, Whole
from device_agent.planning.stages import LEAST_ROWS
from split_model.checkpoint import Checkpoint
from split_model.offload.units import Unit
from split_model.slices import Slice
from split_model.stack import Stack


def plan(*members: int, **more: object) -> GroupPlan:
    """Whole layers, each at one of some members."""
    names = tuple(str(each) for each in range(max(members) + 1))
    return GroupPlan("", names, "portal", tuple(Whole(each) for each in members), **more)  # type: ignore[arg-type]


def step_of(sessions: list[int]) -> RowsHead | BatchHead:
    """Rows of so many sessions."""
    parts = tuple(RowsHead(number, 7, rows, 1) for number, rows in enumerate(sessions))
    return parts[0] if len(parts) == 1 else BatchHead(parts)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.lists(st.integers(1, 100), min_size=1, max_size=15),
    st.integers(1, 6),
)
def test_a_step_is_cut_into_what_it_has(members: list[int], sessions: list[int], micro_batches: int) -> None:
    """All rows, in order, none empty, never more micro-batches than asked for, and no session of several in two."""
    pipeline = Pipeline.of(plan(*members, micro_batches=micro_batches))
    head = step_of(sessions)
    ranges = pipeline.cut(head)
    assert [each.start for each in ranges] == [0, *(each.stop for each in ranges[:-1])]
    assert ranges[-1].stop == sum(sessions) and all(ranges)
    if len(sessions) > 1:
        assert len(ranges) == min(micro_batches, len(sessions))
        ends = {sum(sessions[: number + 1]) for number in range(len(sessions))}
        assert {each.stop for each in ranges} <= ends
    else:
        assert len(ranges) <= pipeline.members
        assert len(ranges) == 1 or min(len(each) for each in ranges) >= LEAST_ROWS - 1


def test_a_prompt_is_cut_where_members_come_twice() -> None:
    """Into as many parts as there are members, if they are long enough; whole texts never."""
    twice = Pipeline.of(plan(0, 1, 0, 1))
    assert twice.interleaved and [len(each) for each in twice.cut(step_of([65]))] == [32, 33]
    assert [len(each) for each in twice.cut(step_of([2 * LEAST_ROWS - 1]))] == [2 * LEAST_ROWS - 1]
    assert twice.cut(ReadHead((50, 50))) == [range(100)]
    assert Pipeline.of(plan(0, 0, 1)).cut(step_of([65])) == [range(65)]


def test_steps_follow_one_another_where_each_leaves_a_member_for_good() -> None:
    """As many as there are stages; one where they come back, are cut, read weights, or share layers."""
    assert Pipeline.of(plan(0, 0, 1, 2)).steps_at_once == 3
    assert Pipeline.of(plan(0, 1, 0)).steps_at_once == 1
    assert Pipeline.of(plan(0, 1, micro_batches=2)).steps_at_once == 1
    assert Pipeline.of(plan(0, 1, streamed=((Unit(0, "mlp"),), ()), ring_bytes=(10, 0))).steps_at_once == 1
    assert Pipeline.of(GroupPlan("", ("a",), "a", (Sharded((1,), (1,)), Whole(0)))) == UNCUT
    assert UNCUT.steps_at_once == 1 and not UNCUT.apart


def test_a_pipeline_knows_whether_keys_and_values_may_be_away() -> None:
    """Steps follow one another there too; how many of their rows are under way is bounded."""
    away = Pipeline.of(plan(0, 1, cache_bytes=(1, 1), transfers=(None, Transfer(0, 1e9, 1e-3, (1.0,)))))
    assert away.apart and away.steps_at_once == 2
    assert not Pipeline.of(plan(0, 1, cache_bytes=(1, 1))).apart


@pytest.mark.parametrize(
    ("form", "names", "shares"),
    [
        ("interleaved", ("one", PORTAL), ()),
        ("interleaved", (PORTAL, "two"), ()),
        ("interleaved-layers", ("one", "two"), (0.0, 1.0)),
        ("interleaved-layers", ("one", "two", PORTAL), (1.0, 2.0, 0.0)),
    ],
)
async def test_an_interleaved_pipeline_conforms(
    form: str, names: tuple[str, ...], shares: tuple[float, ...], tiny_folder: Path
) -> None:
    """Prompts, steps, truncations, forks and several sessions, wherever the portal stands: as any other submodel."""
    path = built("llama", tiny_folder)
    spec = Checkpoint.open(path).spec
    stack = Stack.load(Checkpoint.open(path), Slice(1, spec.num_layers), torch.float32)
    with group_here(path, plan_of(spec, form, names, shares, layers=3, micro_batches=3), first=1) as group:
        await check_submodel(group, stack)


@pytest.mark.parametrize("name", ["mistral-window", "gpt2"])
@pytest.mark.parametrize("micro_batches", [1, 3])
async def test_sessions_in_micro_batches(name: str, micro_batches: int, tiny_folder: Path) -> None:
    """Several sessions at once, with prompts that are cut and without, decode rows and drafts: each as if alone."""
    path = built(name, tiny_folder)
    checkpoint = Checkpoint.open(path)
    stack = Stack.load(checkpoint, Slice(0, checkpoint.spec.num_layers), torch.float32)

    made = plan_of(checkpoint.spec, "interleaved", ("one", PORTAL, "three"), micro_batches=micro_batches)
    with group_here(path, made) as group:
        await check_sessions(group, stack)
