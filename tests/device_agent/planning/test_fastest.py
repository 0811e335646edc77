"""Mode galaxy's choice among its search and the pure forms."""

from __future__ import annotations

import pytest
from group_plans import BERT_LARGE, classifier, layer_of, profile, task, tasks
from hypothesis import given, settings
from msgspec.structs import replace as changed

from device_agent.planning.describe import description
from device_agent.planning.facts import plan_facts
from device_agent.planning.joint import plan_jointly
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.modes import plan_for
from device_agent.planning.plan import ByRows, Hybrid, Sharded
from device_agent.planning.profile import Collective, Profile
from device_agent.planning.table import Table
from device_agent.planning.task import Task, Work

SMALL_BERT = layer_of(classifier(BERT_LARGE), 4)


def fast_links(byte_cost_s: float = 0.0, scatter_s: float = 0.0, memory: float = 1e12) -> Profile:
    """Four devices, and links that carry what members exchange in no time.

    byte_cost_s: what a byte costs products beside it. scatter_s: of a reduce-scatter of 1 MB; 0: as links have it.
    """
    kinds = (Collective("reduce_scatter", 4, Table(((1 << 20,),), (scatter_s,))),) if scatter_s else ()
    measured = profile(SMALL_BERT, [1e9] * 4, 1e9, rtt_s=1e-5, memory=memory, collectives=kinds)
    return changed(measured, devices=tuple(changed(device, byte_cost_s=byte_cost_s) for device in measured.devices))


@given(tasks(layers=2, members=3, rows=(3, 60), new=30, least_memory=20_000))
@settings(max_examples=12, deadline=None)
def test_no_pure_form_is_predicted_to_be_faster(asked: Task) -> None:
    """Nor the search over shares and schemes alone; where any of them fits, this does, and its seconds are said."""
    found = []
    for mode in ("tensor", "sequence"):
        try:
            found.append(asked.seconds(plan_for(mode, asked)))
        except DoesNotFit:
            continue
    try:
        plan = plan_for("galaxy", asked)
    except DoesNotFit:
        assert not found
        with pytest.raises(DoesNotFit):
            plan_jointly(asked)
        return
    assert not asked.lacks(plan)
    assert asked.seconds(plan) <= min([*found, float("inf")]) * (1 + 1e-9)
    assert plan.considered[0][1] == pytest.approx(asked.seconds(plan)) and len(plan.considered) <= 3


@pytest.mark.parametrize(
    ("measured", "work", "chosen", "form"),
    [
        (fast_links(), Work(284), "galaxy", (Hybrid, ByRows)),
        (fast_links(scatter_s=1.0, memory=2.2e8), Work(284), "tensor", Sharded),
        (fast_links(scatter_s=1.0), Work(284, prunes=True), "tensor", Sharded),
    ],
    ids=["galaxy", "tensor", "leaving heads out"],
)
def test_it_says_what_it_chose_and_what_it_considered(
    measured: Profile, work: Work, chosen: str, form: type | tuple[type, ...]
) -> None:
    """In words and for programs: where reduce-scatters take long, all-reduces are better; rows are not shared where
    memory or the leaving out of heads forbids it."""
    asked = task(SMALL_BERT, measured, work)
    plan = plan_for("galaxy", asked)
    assert plan.mode == "galaxy" and all(isinstance(layer, form) for layer in plan.layers)
    assert f"chosen: {chosen} " in (said := description(asked, plan)) and "others: " in said and "lending" not in said
    ways = [each["way"] for each in plan_facts(asked, plan)["considered"]]
    assert ways[0] == chosen and {"galaxy", "tensor"} <= set(ways) <= {"galaxy", "tensor", "sequence"}
    assert ("sequence" in ways) == (chosen == "galaxy")


def test_bytes_that_cost_products_much_are_not_moved_beside_them() -> None:
    """On links that leave nothing to hide, what would be slower by it waits instead."""
    overlapped = []
    for cost in (0.0, 1e-7):
        plan = plan_for("galaxy", task(SMALL_BERT, fast_links(cost, memory=2.2e8), Work(284)))
        overlapped.append({layer.overlap for layer in plan.layers if isinstance(layer, Hybrid)})
    assert overlapped == [{True}, {False}]
