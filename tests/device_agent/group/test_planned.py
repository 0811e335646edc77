"""The product's planner: all members as asked, fewer where that is allowed, and what it expects of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from group_plans import profile

from device_agent.group.joined_plan import JoinedPlan
from device_agent.group.planned import ModePlanner
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.modes import PLANNERS
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Work
from split_model.checkpoint import Checkpoint
from split_model.spec import ModelSpec

WORK = Work(64, 16)
FAST, SLOW = 1e9, 1e4


@pytest.fixture
def spec(tiny: Path) -> ModelSpec:
    """Of a tiny Llama."""
    return Checkpoint.open(tiny).spec


@pytest.mark.parametrize("mode", [mode for mode in PLANNERS if mode != "local"])
@pytest.mark.parametrize("first", [0, 2])
def test_each_mode_has_plans_that_a_group_can_run(mode: str, first: int, spec: ModelSpec) -> None:
    """For the group's layers, with a portal that computes or does not."""
    measured = profile(ModelShape.of(spec), [1e6, 2e6, 1e6], 1e9)
    for names in (("a", "b", "c"), ("b", "c")):
        plan = ModePlanner(mode, spec, "float32", "a", WORK, first_layer=first)(measured, names)
        assert set(plan.members) <= set(names) and plan.mode == mode and plan.portal == "a"
        assert len(JoinedPlan.of(plan, "", "float32", first, 80).layers(spec)) == spec.num_layers - first


def test_fewer_devices_are_named_and_taken_where_that_is_wanted(spec: ModelSpec) -> None:
    """A member that only costs time is said; it computes all the same, unless fewer may."""
    measured = profile(ModelShape.of(spec), [FAST, FAST, SLOW], 1e3)
    asked = ModePlanner("tensor", spec, "float32", "a", WORK)
    assert asked(measured, ("a", "b", "c")).members == ("a", "b", "c") and "alone would be faster" in asked.remark
    fewer = ModePlanner("tensor", spec, "float32", "a", WORK, fewer=True)
    assert fewer(measured, ("a", "b", "c")).members == ("a",)
    assert fewer(measured, ("a",)).members == ("a",) and fewer.remark == ""


def test_too_little_memory_is_said_by_name(spec: ModelSpec) -> None:
    """Before anything is loaded."""
    measured = profile(ModelShape.of(spec), [1e6] * 2, 1e9, memory=[1e9, 1e3])
    with pytest.raises(DoesNotFit, match="sequence does not fit: b lacks"):
        ModePlanner("sequence", spec, "float32", "a", WORK)(measured, ("a", "b"))


def test_what_is_expected_of_each_member(spec: ModelSpec) -> None:
    """The slower member of even shares is expected to take longer; more rows take longer; nothing before a plan."""
    measured = profile(ModelShape.of(spec), [1e6, 1e6], 1e9)
    planner = ModePlanner("pipeline", spec, "float32", "a", WORK)
    assert planner.expects(1, 0) == ()
    plan = planner(measured, ("a", "b"))
    few, many = planner.expects(1, 20), planner.expects(50, 20)
    assert len(few) == len(plan.members) and all(0 < one < two for one, two in zip(few, many, strict=True))
