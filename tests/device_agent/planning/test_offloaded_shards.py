"""TPI-LLM's and Galaxy's plans where shards have no room, and how they are played."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from group_plans import profile, shape, task

from device_agent.planning.memory import DoesNotFit
from device_agent.planning.offloaded_shards import plan_galaxy_offloaded, plan_tpi_llm
from device_agent.planning.plan import GroupPlan, Sharded
from device_agent.planning.task import Task, Work

OF = shape(12, 64, 4, 256, 50, kv_heads=4, gated=True, causal=True, norm_first=True, rotary=True, positions=0)
WEIGHTS = 12 * 4 * OF.layer_elements(0, range(4), range(256))
DISK = 1e6


def short(share: float, disks: float = DISK, sessions: int = 1) -> Task:
    """Three devices with memory for such a share of the weights, and links that take nothing beside the disks."""
    memory = [100_000 + share * WEIGHTS * part for part in (0.5, 0.25, 0.25)]
    asked = profile(OF, [1e9, 2e9, 1e9], 1e9, memory=memory, disks=disks, rtt_s=1e-7)
    return task(OF, asked, Work(16, 8, sessions=sessions))


@pytest.mark.parametrize("planner", [plan_tpi_llm, plan_galaxy_offloaded])
@pytest.mark.parametrize("sessions", [1, 3])
def test_they_fit_and_a_step_takes_what_the_slowest_disk_takes(
    planner: Callable[[Task], GroupPlan], sessions: int
) -> None:
    """No faster than any member reads its own part, and nearly as fast, where disks are slow."""
    asked = short(0.7, sessions=sessions)
    plan = planner(asked)
    plan.check(OF)
    assert plan.streams and not asked.lacks(plan)
    reading = max(
        sum(plan.unit_bytes(OF, member, unit) for unit in units) / DISK for member, units in enumerate(plan.streamed)
    )
    assert reading <= asked.step(plan).seconds * (1 + 1e-9) <= 1.2 * reading
    assert asked.prefill(plan).seconds > 0


def test_a_window_keeps_nothing_and_galaxy_what_fits() -> None:
    """So TPI-LLM reads all of its shards for each step; both nothing where all fits."""
    asked = short(0.9)
    window, kept = plan_tpi_llm(asked), plan_galaxy_offloaded(asked)
    for member, units in enumerate(window.streamed):
        layer = window.layers[0]
        assert isinstance(layer, Sharded)
        assert len(units) in (0, 12 * (1 + bool(layer.groups[member])))
    assert sum(map(len, kept.streamed)) < sum(map(len, window.streamed))
    assert asked.step(kept).seconds < asked.step(window).seconds
    for planner in (plan_tpi_llm, plan_galaxy_offloaded):
        assert not planner(short(2.0)).streams


@pytest.mark.parametrize("planner", [plan_tpi_llm, plan_galaxy_offloaded])
def test_who_has_no_room_or_no_disk(planner: Callable[[Task], GroupPlan]) -> None:
    """Keys, values and one unit need memory; and a disk that nobody has measured is not read."""
    with pytest.raises(DoesNotFit, match="lacks"):
        planner(short(-0.05))
    with pytest.raises(ValueError, match="was not measured"):
        planner(short(0.7, disks=0.0))
