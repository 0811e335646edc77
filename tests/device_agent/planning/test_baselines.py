"""What is compared with, and EdgeShard's partition beside trying everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from group_plans import BERT_LARGE, OPT_1_3B, TINY, TINY_CAUSAL, env_a, env_b, profile, task
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.planning.baselines import plan_galaxy, plan_local, plan_pipeline, plan_sequence, plan_tensor
from device_agent.planning.edgeshard import plan_edgeshard
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.plan import ByRows, GroupPlan, Hybrid, Sharded, Whole
from device_agent.planning.ratios import by_speed
from device_agent.planning.shares import all_ways
from device_agent.planning.task import Task, Work

ASKED = task(TINY, profile(TINY, [1e6, 2e6, 1e6], 1e6), Work(12))


def test_tensor_parallelism_shares_evenly_unless_told() -> None:
    """As in the papers; and by speed where asked."""
    assert set(plan_tensor(ASKED).layers) == {Sharded((1, 2, 1), (16, 16, 16))}
    assert plan_tensor(ASKED, by_speed(ASKED)).layers[0] == Sharded((1, 2, 1), (12, 24, 12))


def test_sequence_parallelism_gathers_keys_and_values() -> None:
    """Nothing overlaps, and everybody has all weights."""
    plan = plan_sequence(ASKED)
    assert set(plan.layers) == {ByRows((1.0, 1.0, 1.0), Whole(0), keys_values=True, overlap=False)}
    sent = ASKED.prefill(plan).sent
    assert sent[1] == (2 * 2 / 3 * 12 * TINY.row_bytes,) * 3


def test_galaxy_has_one_scheme() -> None:
    """Scheme-1."""
    assert all(isinstance(layer, Hybrid) and not layer.mlp_by_rows for layer in plan_galaxy(ASKED).layers)


def test_pipelines_hand_out_whole_layers() -> None:
    """In order; alone the portal or who is named has all of them."""
    assert plan_pipeline(ASKED).layers == (Whole(0), Whole(1), Whole(2))
    assert plan_pipeline(ASKED, [0, 1, 2]).layers == (Whole(1), Whole(2), Whole(2))
    assert plan_local(ASKED).members == ("a",)
    alone = plan_local(ASKED, "b")
    assert alone.members == ("b",) and alone.portal == "a" and set(alone.layers) == {Whole(0)}
    assert sum(map(sum, ASKED.prefill(alone).sent)) == 13 * TINY.row_bytes


@pytest.mark.parametrize(
    "planner", [plan_tensor, plan_sequence, plan_galaxy, plan_pipeline, plan_local, plan_edgeshard]
)
def test_too_little_memory_is_said_by_all(planner: object) -> None:
    """With the name of who lacks it."""
    measured = profile(OPT_1_3B, [1e9] * 2, 1e7, memory=[1e9, 2e9])
    with pytest.raises(DoesNotFit, match="does not fit: ") as raised:
        planner(task(OPT_1_3B, measured, Work(284)))  # type: ignore[operator]
    assert raised.value.lacks


def test_budgets_of_galaxys_environments() -> None:
    """Bert-L fits sequence parallelism in A and not in B, as in the paper's Table V; its 1 GB device lacks memory."""
    plan_sequence(task(BERT_LARGE, env_a(BERT_LARGE), Work(284)))
    with pytest.raises(DoesNotFit, match="d lacks"):
        plan_sequence(task(BERT_LARGE, env_b(BERT_LARGE), Work(284)))


@st.composite
def pipelines(draw: st.DrawFn) -> Task:
    of = replace(draw(st.sampled_from([TINY, TINY_CAUSAL])), layers=4)
    members = draw(st.integers(1, 3))
    speeds = draw(st.lists(st.floats(1e5, 1e7), min_size=members, max_size=members))
    memory = draw(st.lists(st.integers(30_000, 300_000), min_size=members, max_size=members))
    measured = profile(of, speeds, draw(st.floats(1e4, 1e7)), memory=memory, rtt_s=draw(st.sampled_from([0.0, 0.05])))
    outside = draw(st.booleans()) and members > 1
    names = [device.name for device in measured.devices]
    work = Work(draw(st.integers(1, 20)), draw(st.integers(0, 9)) if of.causal else 0)
    return task(of, measured, work, members=names[1:] if outside else names, portal="a")


@given(pipelines())
@settings(max_examples=60, deadline=None)
def test_edgeshard_finds_the_fastest_runs_of_layers(asked: Task) -> None:
    """No other runs, in any order, that fit are faster; where it finds none, none fits."""
    others = []
    for ordered in permutations(asked.members):
        for counts in all_ways(asked.shape.layers, len(ordered)):
            kept = [(name, count) for name, count in zip(ordered, counts, strict=True) if count]
            layers = tuple(Whole(at) for at, (_, count) in enumerate(kept) for _ in range(count))
            plan = GroupPlan("any", tuple(name for name, _ in kept), asked.portal, layers)
            if not asked.lacks(plan):
                others.append(asked.seconds(plan))
    try:
        found = plan_edgeshard(asked)
    except DoesNotFit as error:
        assert error.lacks and not others
        return
    assert not asked.lacks(found)
    assert asked.seconds(found) == pytest.approx(min(others), rel=1e-6)
