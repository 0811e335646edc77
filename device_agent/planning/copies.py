"""How many copies of their attention's weights the members of a plan have memory for: what leaves heads out. Pure."""

from __future__ import annotations

import math

from device_agent.planning.plan import GroupPlan, weights_of
from device_agent.planning.task import Task


def attention_copies(task: Task, plan: GroupPlan) -> float:
    """Copies of its attention's weights, of all layers, that the member with the least room has memory for beside the
    plan, 0 or more; infinite where nobody has attention."""
    budgets = {device.name: device.memory_bytes for device in task.profile.devices}
    held, shape, most = task.held(plan), task.shape, math.inf
    for member, name in enumerate(plan.members):
        parts = [(number, weights_of(shape, layer, member)[0]) for number, layer in enumerate(plan.layers)]
        sizes = [sum(shape.matrices("attention", groups, number)) for number, groups in parts if groups]
        if sizes:
            spare = max(0, budgets[name] - held[name].total)
            most = min(most, spare / (sum(sizes) * shape.dtype_bytes))
    return most
