"""What a plan is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from group_plans import TINY, TINY_CAUSAL, profile, task

from device_agent.planning.baselines import plan_local, plan_tensor
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.task import Work

MEASURED = profile(TINY_CAUSAL, [1e6, 2e6], 1e6)


@pytest.mark.parametrize(("rows", "new", "wanted"), [(0, 0, 1), (5, -1, 1), (5, 0, 0), (5, 0, 6)])
def test_what_is_no_work_is_refused(rows: int, new: int, wanted: int) -> None:
    """Before anything is planned."""
    with pytest.raises(ValueError, match="no work"):
        Work(rows, new, wanted)


def test_a_device_that_was_not_measured_is_refused() -> None:
    """By name, as member or as portal."""
    for members, portal in ((("a", "z"), "a"), (("a",), "z")):
        with pytest.raises(ValueError, match="nothing was measured of z"):
            task(TINY_CAUSAL, MEASURED, Work(5), members, portal)


def test_all_the_work_is_the_prompt_and_every_new_token() -> None:
    """A step is the one in the middle of what is generated; one-shot work has none, and keeps nothing."""
    asked = task(TINY_CAUSAL, MEASURED, Work(10, 20))
    plan = plan_tensor(asked)
    assert asked.work.step.cached == 20 and asked.work.positions == 30
    assert asked.seconds(plan) == asked.prefill(plan).seconds + 20 * asked.step(plan).seconds
    once = task(TINY_CAUSAL, MEASURED, Work(10))
    assert once.seconds(plan) == once.prefill(plan).seconds
    assert once.held(plan)["a"].cache == 0 < asked.held(plan)["a"].cache


def test_a_task_with_fewer_layers_is_the_same_otherwise() -> None:
    """Half of them attend to an encoder where some did."""
    asked = task(replace(TINY, layers=6, cross_layers=3), profile(TINY, [1e6], 1e6), Work(5))
    short = asked.shortened(4)
    assert (short.shape.layers, short.shape.cross_layers) == (4, 2)
    assert replace(short, shape=asked.shape) == asked
    assert task(TINY, profile(TINY, [1e6], 1e6), Work(5)).shortened(2).shape.cross_layers == 0


def test_what_does_not_fit_or_is_no_plan_is_refused() -> None:
    """Each by an error of its own."""
    asked = task(TINY, profile(TINY, [1e6, 1e6], 1e6, memory=[1e4, 1e9]), Work(5))
    with pytest.raises(DoesNotFit, match="a lacks"):
        plan_local(asked, "a")
    with pytest.raises(ValueError, match="there is no member 5"):
        asked.fitting(GroupPlan("test", ("b",), "b", (Whole(5),) * TINY.layers))
