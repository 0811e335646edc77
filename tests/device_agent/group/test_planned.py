"""The product's planner: all members as asked, fewer where that is allowed, and what it expects of each."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest
from clouds import until
from group_plans import profile

from device_agent.group.formation.planned import ModePlanner
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.modes import PLANNERS, plan_for
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Task, Work
from split_model.checkpoint import Checkpoint
from split_model.offload.form import Decoding
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
    assert "alone is faster" in fewer.remark
    assert fewer(measured, ("a",)).members == ("a",) and fewer.remark == ""


def test_a_plan_whose_steps_take_too_long_is_said_to(spec: ModelSpec) -> None:
    """Members would give each other up, again and again, and nobody would know why."""
    for flops_s, said in ((1e9, False), (10.0, True)):
        planner = ModePlanner("pipeline", spec, "float32", "a", WORK)
        planner(profile(ModelShape.of(spec), [flops_s] * 2, 1e9), ("a", "b"))
        assert ("gives up after 120 s" in planner.remark) == said


async def test_who_has_too_little_memory_is_left_out_where_fewer_may_compute(spec: ModelSpec) -> None:
    """Whether it is planned when it is needed or beforehand; where nothing fits it is said who lacks how much."""
    measured = profile(ModelShape.of(spec), [1e6] * 3, 1e9, memory=[1e9, 1e3, 1e9])
    planner = ModePlanner("sequence", spec, "float32", "a", WORK, fewer=True)
    await planner.ahead(measured, ("a", "b"))
    assert planner(measured, ("a", "b")).members == ("a",) and "does not fit" in planner.remark
    plan = planner(measured, ("a", "b", "c"))
    assert "b" not in plan.members and plan.members
    with pytest.raises(DoesNotFit, match="b lacks"):
        planner(profile(ModelShape.of(spec), [1e6] * 2, 1e9, memory=[1e3, 1e3]), ("a", "b"))


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


class PlannedAnew(Exception):
    """A plan is made that should be known."""


def planning() -> list[psutil.Process]:
    """Processes of this one that plan."""
    children = psutil.Process().children()
    return [each for each in children if "device_agent.group.formation.planning_apart" in each.cmdline()]


@pytest.mark.parametrize(
    ("mode", "fewer"),
    [
        *(("galaxy", True), ("voltage", False), ("sequence", True), ("pipeline", False)),
        *(
            pytest.param(mode, fewer, marks=pytest.mark.slow)
            for mode, fewer in (("galaxy", False), ("voltage", True), ("sequence", False), ("pipeline", True))
        ),
    ],
)
async def test_a_plan_may_be_made_beforehand(
    mode: str, fewer: bool, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another process, and it is the same plan; it is there at once when it is needed, and no longer once something
    else was measured."""
    measured = profile(ModelShape.of(spec), [1e6, 2e6, SLOW], 1e7)
    planner = ModePlanner(mode, spec, "float32", "a", WORK, fewer=fewer)
    planner(measured, ("a", "b", "c"))
    expected = ModePlanner(mode, spec, "float32", "a", WORK, fewer=fewer)(measured, ("a", "c"))
    await planner.ahead(measured, ("a", "c"))
    assert planning() == []

    def plan_anew(*_: object) -> None:
        raise PlannedAnew

    for function in ("plan_for", "fewer_devices"):
        monkeypatch.setattr(f"device_agent.group.formation.planned.{function}", plan_anew)
    assert planner(measured, ("a", "c")) == expected
    with pytest.raises(PlannedAnew):
        planner(profile(ModelShape.of(spec), [1e6, 2e6, 2e6], 1e7), ("a", "c"))


async def test_what_is_streamed_may_be_planned_beforehand(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a plan in which members read some weights from their disks is made by another process, and then there."""
    of = ModelShape.of(spec)
    ample = profile(of, [1e7], 1e8)
    alone = Task(of, ample, ("a",), "a", WORK).held(GroupPlan("", ("a",), "a", (Whole(0),) * of.layers))["a"]
    little = alone.buffers + alone.cache / 2 + alone.layers * 0.45
    measured = profile(of, [1e7] * 3, 1e8, memory=[alone.ends + little, little, little], disks=1e8)
    planner = ModePlanner("lime", spec, "float32", "a", WORK)
    expected = ModePlanner("lime", spec, "float32", "a", WORK)(measured, ("a", "c"))
    assert expected.streams
    await planner.ahead(measured, ("a", "c"))

    def plan_anew(*_: object) -> None:
        raise PlannedAnew

    monkeypatch.setattr("device_agent.group.formation.planned.plan_for", plan_anew)
    assert planner(measured, ("a", "c")) == expected


async def test_what_does_not_fit_is_not_planned_beforehand(spec: ModelSpec) -> None:
    """Whoever needs it is told why."""
    measured = profile(ModelShape.of(spec), [1e6] * 2, 1e9, memory=[1e9, 1e3])
    planner = ModePlanner("sequence", spec, "float32", "a", WORK)
    await planner.ahead(measured, ("a", "b"))
    with pytest.raises(DoesNotFit, match="b lacks"):
        planner(measured, ("a", "b"))


async def test_planning_beforehand_ends_with_who_wants_it(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process stays, whether it is given up, or takes too long, or says what is no plan."""
    measured = profile(ModelShape.of(spec), [1e6, 2e6, 1e6], 1e7)
    planner = ModePlanner("galaxy", spec, "float32", "a", WORK)
    wanted = asyncio.create_task(planner.ahead(measured, ("a", "b")))
    await until(lambda: bool(planning()))
    wanted.cancel()
    await asyncio.gather(wanted, return_exceptions=True)
    assert wanted.cancelled() and planning() == []
    with monkeypatch.context() as patched:
        patched.setattr("device_agent.group.formation.planning_apart.WITHIN_S", 0.0)
        await planner.ahead(measured, ("a", "b"))
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/bin/echo")
        await planner.ahead(measured, ("a", "b"))
    assert planning() == [] and planner(measured, ("a", "b")).members == ("a", "b")


def test_of_coded_units_fewer_bytes_are_expected_to_be_read(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the share that lies on the disk: else a plain disk beside coded ones would look slow though it is not."""
    of = ModelShape.of(spec)
    ample = profile(of, [1e7], 1e8)
    alone = Task(of, ample, ("a",), "a", WORK).held(GroupPlan("", ("a",), "a", (Whole(0),) * of.layers))["a"]
    little = alone.buffers + alone.cache / 2 + alone.layers * 0.45
    measured = profile(of, [1e7] * 2, 1e8, memory=[alone.ends + little, little], disks=[1e6, 2e6])
    decodes = tuple(msgspec.structs.replace(each, decoding=Decoding(0.35, 1e9, 0.0)) for each in measured.devices)

    def coded_at_one(mode: str, task: Task) -> GroupPlan:
        return replace(plan_for(mode, task), coded=(True, False))

    monkeypatch.setattr("device_agent.group.formation.planned.plan_for", coded_at_one)
    planner = ModePlanner("lime", spec, "float32", "a", WORK)
    plan = planner(msgspec.structs.replace(measured, devices=decodes), ("a", "b"))
    assert [plan.codes(place) for place in range(2)] == [True, False] and all(plan.streamed)
    sizes = [sum(plan.unit_bytes(of, place, each) for each in plan.streamed[place]) for place in range(2)]
    assert planner.reads() == pytest.approx([0.35 * sizes[0] / 1e6, sizes[1] / 2e6])
