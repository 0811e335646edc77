"""Up to how many rows a step is computed by heads, columns or one member, where more rows are shared by rows. Pure.

Rows that are shared cost each member the reading of all its weights, few rows as much as many; by heads and columns it
reads a part of them, and exchanges twice a layer. So few rows are one thing and many another, and where one becomes the
other depends on devices and links. Planner and members go by the same rule.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard, Union

from device_agent.planning.plan import ByRows, GroupPlan, Hybrid, Layer, Lent
from device_agent.planning.task import Task
from device_agent.planning.timeline import ForwardPass

MOST_FEW = 256
"""More rows are never few."""


def with_few_rows(task: Task, plan: GroupPlan) -> GroupPlan:
    """The plan with `few_rows` of its layers as high as it pays by the profile: all sizes up to it, by powers of two,
    are faster so than shared by rows. One row is always few where tokens are generated."""
    if not any(_knows_few(layer) for layer in plan.layers):
        return plan
    few, rows = (1 if task.work.new else 0), 1
    while rows <= MOST_FEW:
        forward = ForwardPass(rows, task.work.rows if task.work.new else 0, 1 if task.work.new else rows)
        stepped, shared = (task.forward(_with(plan, most), forward).seconds for most in (rows, 0))
        if rows > few and stepped > shared:
            break
        few = max(few, rows)
        rows *= 2
    return _with(plan, few)


def _with(plan: GroupPlan, few_rows: int) -> GroupPlan:
    changed: dict[int, Layer] = {}
    for layer in plan.layers:
        if id(layer) not in changed:
            changed[id(layer)] = replace(layer, few_rows=few_rows) if _knows_few(layer) else layer
    return replace(plan, layers=tuple(changed[id(layer)] for layer in plan.layers))


def _knows_few(layer: Layer) -> TypeGuard[Union[Hybrid, ByRows, Lent]]:
    """Whether few rows go another way than many. Where heads are lent that may cost memory, so its planner says so."""
    return isinstance(layer, (Hybrid, ByRows)) or (isinstance(layer, Lent) and layer.few_rows > 0)
