"""What is compared: each method is one of the product's planners and nothing else, or another program on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from device_agent.planning.baselines import plan_galaxy, plan_pipeline
from device_agent.planning.edgeshard import plan_edgeshard
from device_agent.planning.lime import plan_lime, plan_reserved
from device_agent.planning.offloaded import plan_edgeshard_offloaded, plan_pipeline_offloaded
from device_agent.planning.offloaded_shards import plan_galaxy_offloaded, plan_tpi_llm
from device_agent.planning.plan import GroupPlan
from device_agent.planning.task import Task


@dataclass(frozen=True)
class Method:
    """One of them.

    Attributes:
        title: for people.
        planner: raises DoesNotFit; None: it is no group.
        ours: whether it is Trilby, or Trilby without something.
        coded: whether weights lie coded on its disks; such methods are compared with each other only.
    """

    title: str
    planner: Callable[[Task], GroupPlan] | None
    ours: bool = False
    coded: bool = False


def with_one_unit_rings(task: Task) -> GroupPlan:
    """LIME's plan with buffers for one unit at a time, instead of those that the timeline chose."""
    plan = plan_lime(task)
    largest = (
        max((plan.unit_bytes(task.shape, member, unit) for unit in units), default=0)
        for member, units in enumerate(plan.streamed)
    )
    return replace(plan, ring_bytes=tuple(largest))


def without_prefetch(task: Task) -> GroupPlan:
    """Pipeline + offloading whose members read a unit when it is needed."""
    return plan_pipeline_offloaded(task, prefetch=False)


def without_transfers(task: Task) -> GroupPlan:
    """LIME's plan, whose members stream more as soon as their own memory is full (Table V)."""
    return replace(plan_lime(task), transfers=())


def with_rows_fetched(task: Task) -> GroupPlan:
    """LIME's plan, whose keys and values come back from where they lie for each use, as the paper has it."""
    plan = plan_lime(task)
    return replace(plan, transfers=tuple(each and replace(each, fetches=True) for each in plan.transfers))


def plain(planner: Callable[[Task], GroupPlan]) -> Callable[[Task], GroupPlan]:
    """The same, of weights that lie on the disks as they do in memory."""
    return lambda task: planner(task.uncoded())


METHODS: Mapping[str, Method] = {
    "lime": Method("Trilby, lime", plain(plan_lime), ours=True),
    "lime-coded": Method("the same, weights coded", plan_lime, ours=True, coded=True),
    "one-unit-rings": Method("lime, rings of one unit", plain(with_one_unit_rings), ours=True),
    "no-transfers": Method("lime, no transfer of keys and values", plain(without_transfers), ours=True),
    "rows-fetched": Method("lime, keys and values fetched for each use", plain(with_rows_fetched), ours=True),
    "lime-reserved": Method("lime, no planner", plain(plan_reserved), ours=True),
    "offloaded": Method("pipeline + offloading", plain(plan_pipeline_offloaded)),
    "no-prefetch": Method("the same without prefetch", plain(without_prefetch)),
    "offloaded-coded": Method("pipeline + offloading, weights coded", plan_pipeline_offloaded, coded=True),
    "edgeshard-offloaded": Method("EdgeShard + offloading", plain(plan_edgeshard_offloaded)),
    "tpi-llm": Method("TPI-LLM", plain(plan_tpi_llm)),
    "galaxy-offloaded": Method("Galaxy + offloading", plain(plan_galaxy_offloaded)),
    "edgeshard": Method("EdgeShard", plan_edgeshard),
    "galaxy": Method("Galaxy", plan_galaxy),
    "pipeline": Method("pipeline", plan_pipeline),
    "accelerate": Method("accelerate, one device", None),
    "llama.cpp": Method("llama.cpp, one device", None),
}
