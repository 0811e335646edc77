"""Algorithm 1, with its holes filled."""

from __future__ import annotations

import pytest
from group_plans import BERT_LARGE, DISTILBERT, OPT_1_3B, PAPERS, TINY, env_a, env_b, profile, task, tasks
from hypothesis import given, settings

from device_agent.planning.galaxy import capacities, plan_algorithm_1, plan_of, shifted_plan
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.plan import GroupPlan, Hybrid
from device_agent.planning.table import Table
from device_agent.planning.task import Task, Work

TASKS = tasks(7, 5, (1, 40), 50, 10_000)
"""From far too little memory to more than enough."""


def layers_of(plan: GroupPlan) -> list[Hybrid]:
    found = [layer for layer in plan.layers if isinstance(layer, Hybrid)]
    assert len(found) == len(plan.layers)
    return found


@given(TASKS)
@settings(max_examples=150)
def test_it_fits_or_says_who_lacks_how_much(asked: Task) -> None:
    """A plan hands out all groups, columns and rows and keeps every budget; else each that is named lacks something."""
    try:
        plan = plan_algorithm_1(asked)
    except DoesNotFit as error:
        assert error.lacks
        assert {lack.device for lack in error.lacks} <= set(asked.members)
        assert all(lack.needed > lack.budget for lack in error.lacks)
        return
    plan.check(asked.shape)
    assert not asked.lacks(plan)
    second = sum(layer.mlp_by_rows for layer in layers_of(plan))
    one = layers_of(plan)[-1]
    if second < asked.shape.layers:
        # Line 22: one more layer of Scheme-2 would not fit.
        assert asked.lacks(plan_of(asked, one.groups, one.columns, one.rows, second + 1))


@given(TASKS)
@settings(max_examples=100)
def test_who_lacks_memory_has_nothing_left_to_give_or_nobody_to_take_it(asked: Task) -> None:
    """Lines 7 to 17: after shifting nobody has room for one more column, or group, of a member that lacks memory."""
    of = asked.shape
    plan = shifted_plan(asked)
    plan.check(of)
    layer = layers_of(plan)[0]
    budgets = {device.name: device.memory_bytes for device in asked.profile.devices}
    found = asked.held(plan)
    room = {name: budgets[name] - found[name].total for name in asked.members}
    kept = of.keeping_layers * 2 * of.head_dim * asked.work.positions
    column = of.layers * of.column_elements + (2 if of.gated else 1) * asked.work.rows
    passing = (2 * of.heads_per_group + 2) * of.head_dim * asked.work.rows
    group = (of.layers + of.cross_layers) * of.group_elements + kept + passing
    for lack in asked.lacks(plan):
        at = asked.members.index(lack.device)
        others = [left for name, left in room.items() if name != lack.device]
        bias = (of.layers + of.cross_layers) * of.row_bytes
        assert not layer.columns[at] or max(others, default=0) < column * of.dtype_bytes + bias
        assert not layer.groups[at] or max(others, default=0) < group * of.dtype_bytes + bias


def test_without_limits_shares_are_by_capacity_and_all_layers_scheme_2() -> None:
    """Lines 1 to 6 and 18 to 26."""
    asked = task(DISTILBERT, profile(DISTILBERT, [4e9, 2e9, 1e9, 1e9], 6e7), Work(280))
    layers = layers_of(plan_algorithm_1(asked))
    assert all(layer.mlp_by_rows for layer in layers)
    assert layers[0].groups == (6, 3, 2, 1) or sum(layers[0].groups) == 12
    assert layers[0].columns == (1536, 768, 384, 384)
    assert layers[0].rows == (140.0, 70.0, 35.0, 35.0)


def test_capacities_are_of_each_block() -> None:
    """A device that is slow at attention alone gets few heads, and its share of columns."""
    of = TINY
    measured = profile(of, [1e6, 1e6], 1e6)
    quick = measured.devices[1].seconds["attend"]
    slow = tuple(100 * second for second in quick.seconds)
    measured.devices[1].seconds["attend"] = Table(quick.axes, slow)
    attention, mlp, _ = capacities(task(of, measured, Work(40)))
    assert attention[0] > 3 * attention[1]
    assert mlp[0] == mlp[1]


def test_who_lacks_memory_gives_columns_first() -> None:
    """OPT-L on environment A: the portal, which has embedding and head too, gives columns and keeps its heads."""
    plan = plan_algorithm_1(task(OPT_1_3B, env_a(OPT_1_3B), Work(284)))
    layer = layers_of(plan)[0]
    assert layer.groups == (8, 8, 8, 8)
    assert layer.columns[0] < layer.columns[1] and max(layer.columns[1:]) - min(layer.columns[1:]) <= 1
    assert not any(layer.mlp_by_rows for layer in layers_of(plan))


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_models_fit_its_environments(name: str) -> None:
    """All six of Galaxy+ and both others, in A and in B; those that are small by Scheme-2 alone."""
    of = PAPERS[name]
    for measured in (env_a(of), env_b(of)):
        asked = task(of, measured, Work(284))
        plan = plan_algorithm_1(asked)
        assert not asked.lacks(plan)
        if name in ("DistilBERT", "BERT-large", "GPT-2", "ViT-base"):
            assert all(layer.mlp_by_rows for layer in layers_of(plan))


def test_galaxy_is_scheme_1_alone() -> None:
    """Whatever memory there is."""
    plan = plan_algorithm_1(task(BERT_LARGE, env_a(BERT_LARGE), Work(284)), scheme_2=False)
    assert not any(layer.mlp_by_rows for layer in layers_of(plan))


def test_who_lacks_is_named() -> None:
    """A model that all of them together have no room for."""
    asked = task(OPT_1_3B, profile(OPT_1_3B, [1e9] * 2, 1e7, memory=[2e9, 1e9]), Work(284))
    with pytest.raises(DoesNotFit, match=r"galaxy does not fit: (a|b) lacks \d+\.\d MB") as raised:
        plan_algorithm_1(asked)
    missing = sum(lack.needed - lack.budget for lack in raised.value.lacks)
    assert missing > 2.0e9
