"""What is compared: each method is one of the product's planners, or what it is made of, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench.edge.cells import ACCELERATE, ALONE, CALIBRATION, LOCAL

from device_agent.planning.baselines import (
    plan_by_efficiency,
    plan_galaxy,
    plan_local,
    plan_pipeline,
    plan_sequence,
    plan_tensor,
)
from device_agent.planning.edgeformer import lent_plan, plan_edgeformer
from device_agent.planning.edgeshard import plan_edgeshard
from device_agent.planning.fastest import plan_galaxy_or_pure
from device_agent.planning.forms import Lent, Whole
from device_agent.planning.galaxy import plan_algorithm_1
from device_agent.planning.lending_search import WAYS, LendingSearch
from device_agent.planning.plan import GroupPlan
from device_agent.planning.ratios import by_speed
from device_agent.planning.task import Task
from device_agent.planning.voltage import plan_published, plan_voltage

_ATTENTION, _BOTH = (
    next(way for way in WAYS if way.name == name) for name in ("lending attention", "lending projections and columns")
)


def plan_published_lending(task: Task) -> GroupPlan:
    """EdgeFormer as published, nothing left out: blocks by Eq. 2, of which each home lends attention where that pays by
    the profile. Memory must let the devices that have no block lend theirs."""
    blocks, search = plan_by_efficiency(task), LendingSearch(task)

    def lent(layer: Whole) -> Lent | Whole:
        return search.best(task.members.index(blocks.members[layer.member]), _ATTENTION).layer

    layers = tuple(lent(layer) for layer in blocks.layers if isinstance(layer, Whole))
    return task.fitting(replace(blocks, members=task.members, layers=layers))


def plan_narrowing(task: Task) -> GroupPlan:
    """As a group plans that may leave heads out: none of its layers shares rows."""
    return plan_edgeformer(replace(task, work=replace(task.work, prunes=True)))


def plan_lending(task: Task, projections: bool) -> GroupPlan:
    """All layers at the first device, and each lends to the second, whether that pays or not: half of its heads with
    their projections and half of its columns, or the attention of half of its heads."""
    groups, columns = task.shape.kv_heads, task.shape.intermediate
    heads, inner = (groups - groups // 2, groups // 2), (columns, 0)
    if projections:
        inner = columns - columns // 2, columns // 2
    none = (0,) * (len(task.members) - 2)
    layer = Lent(0, (*heads, *none), (*inner, *none), projections)
    return task.fitting(GroupPlan("edgeformer", task.members, task.portal, (layer,) * task.shape.layers))


METHODS: dict[str, tuple[str, Callable[[Task], GroupPlan]]] = {
    LOCAL: ("one device", lambda task: plan_local(task, task.members[0])),
    CALIBRATION: ("calibration", lambda task: plan_published(task, by_speed(task))),
    ACCELERATE: ("accelerate", lambda task: plan_local(task, task.members[0])),
    "tensor": ("tensor parallelism", plan_tensor),
    "tensor-by-speed": ("tensor parallelism, by speed", lambda task: plan_tensor(task, by_speed(task))),
    "sequence": ("sequence parallelism", plan_sequence),
    "sequence-by-speed": ("sequence parallelism, by speed", lambda task: plan_sequence(task, by_speed(task))),
    "edgeshard": ("EdgeShard", plan_edgeshard),
    "pipeline": ("pipeline", plan_pipeline),
    "galaxy": ("Galaxy (Scheme-1)", plan_galaxy),
    "galaxy-plus": ("Galaxy+, Algorithm 1", plan_algorithm_1),
    "joint": ("Trilby, galaxy", plan_galaxy_or_pure),
    "voltage-paper": ("Voltage as published", plan_published),
    "voltage": ("Trilby, voltage", plan_voltage),
    "edgeformer": ("Trilby, edgeformer", plan_edgeformer),
    "edgeformer-paper": ("EdgeFormer as published", plan_published_lending),
    "edgeformer-narrow": ("Trilby, edgeformer, that may leave heads out", plan_narrowing),
    "lending": ("the best that is lent", lambda task: lent_plan(task, LendingSearch(task), _BOTH)),
    "lend-attention": ("attention lent", lambda task: plan_lending(task, projections=False)),
    "lend-projections": ("projections and columns lent", lambda task: plan_lending(task, projections=True)),
}


BARRIERS = frozenset(METHODS) - ALONE - {CALIBRATION, "edgeshard", "pipeline"}
"""Those in which members wait for one another in each layer."""


TRYING = frozenset({"joint", "voltage", "edgeformer", "edgeformer-narrow"})
"""Trilby's own, whose groups try how plans are best run."""


def thinned(plan: GroupPlan, layers: int) -> GroupPlan:
    """The plan with so many of its layers, taken evenly from all of them."""
    count = len(plan.layers)
    return replace(plan, layers=tuple(plan.layers[(2 * at + 1) * count // (2 * layers)] for at in range(layers)))
