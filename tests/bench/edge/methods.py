"""What is compared: each method is one of the product's planners, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench.edge.cells import CALIBRATION, LOCAL

from device_agent.planning.baselines import plan_galaxy, plan_local, plan_pipeline, plan_sequence, plan_tensor
from device_agent.planning.edgeshard import plan_edgeshard
from device_agent.planning.galaxy import plan_algorithm_1
from device_agent.planning.joint import plan_jointly
from device_agent.planning.plan import GroupPlan
from device_agent.planning.ratios import by_speed
from device_agent.planning.task import Task
from device_agent.planning.voltage import plan_published, plan_voltage

METHODS: dict[str, tuple[str, Callable[[Task], GroupPlan]]] = {
    LOCAL: ("one device", lambda task: plan_local(task, task.members[0])),
    CALIBRATION: ("calibration", lambda task: plan_published(task, by_speed(task))),
    "tensor": ("tensor parallelism", plan_tensor),
    "tensor-by-speed": ("tensor parallelism, by speed", lambda task: plan_tensor(task, by_speed(task))),
    "sequence": ("sequence parallelism", plan_sequence),
    "sequence-by-speed": ("sequence parallelism, by speed", lambda task: plan_sequence(task, by_speed(task))),
    "edgeshard": ("EdgeShard", plan_edgeshard),
    "pipeline": ("pipeline", plan_pipeline),
    "galaxy": ("Galaxy (Scheme-1)", plan_galaxy),
    "galaxy-plus": ("Galaxy+, Algorithm 1", plan_algorithm_1),
    "joint": ("Trilby, galaxy", plan_jointly),
    "voltage-paper": ("Voltage as published", plan_published),
    "voltage": ("Trilby, voltage", plan_voltage),
}


BARRIERS = frozenset(METHODS) - {LOCAL, CALIBRATION, "edgeshard", "pipeline"}
"""Those in which members wait for one another in each layer."""


TRYING = frozenset({"joint", "voltage"})
"""Trilby's own, whose groups try how plans are best run."""


def thinned(plan: GroupPlan, layers: int) -> GroupPlan:
    """The plan with so many of its layers, taken evenly from all of them."""
    count = len(plan.layers)
    return replace(plan, layers=tuple(plan.layers[(2 * at + 1) * count // (2 * layers)] for at in range(layers)))
