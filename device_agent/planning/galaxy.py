"""Galaxy+'s Algorithm 1: shares by capacity, then shifted to who has memory, then Scheme-2 while it fits. Pure.

What the paper leaves open is filled in: P is all layers and Q none until lines 36 and 37 say otherwise, which here is
tried after shifting too; line 17 returns what it calls; units are whole groups and columns; a device gets no more
than it has room for and gives no more than it has; where nobody has room it ends, and says who lacks how much. Each
block has capacities of its own (Eq. 10 has one for all), and memory is that of `memory.py`, with embedding, head, cache
and buffers (Eq. 8 leaves them out).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from device_agent.planning.plan import GroupPlan, Hybrid
from device_agent.planning.ratios import inverse
from device_agent.planning.shares import handed_out
from device_agent.planning.task import Task

MODE = "galaxy"
Parts = tuple[int, ...]


def plan_algorithm_1(task: Task, scheme_2: bool = True) -> GroupPlan:
    """The paper's plan.

    scheme_2: whether layers may be Scheme-2; without it this is the earlier Galaxy.

    Raises DoesNotFit, with who lacks how much, where shifting does not help.
    """
    plan = task.fitting(shifted_plan(task))
    only = plan.layers[0]
    assert isinstance(only, Hybrid)
    for second in range(1, task.shape.layers + 1) if scheme_2 else ():
        changed = plan_of(task, only.groups, only.columns, only.rows, second)
        if task.lacks(changed):
            break
        plan = changed
    return plan


def shifted_plan(task: Task) -> GroupPlan:
    """Lines 28 to 33: all layers Scheme-1, by capacity, shifted to who has memory; it may still not fit."""
    shape, work = task.shape, task.work
    attention, mlp, by_rows = capacities(task)
    groups = handed_out(shape.kv_heads, attention)
    columns = handed_out(shape.intermediate, mlp)
    rows = tuple(float(part) for part in handed_out(work.rows, by_rows))

    passing = (2 if shape.gated else 1) * work.rows
    per_column = (shape.layers * shape.column_elements + passing) * shape.dtype_bytes
    attentions = sum(shape.attentions(layer) for layer in range(shape.layers))
    kept = shape.keeping_layers * 2 * shape.head_dim * work.positions
    passing = (2 * shape.heads_per_group + 2) * shape.head_dim * work.rows
    per_group = (attentions * shape.group_elements + kept + passing) * shape.dtype_bytes
    for _ in task.members:
        before = columns, groups
        columns = balanced(task, columns, mlp, per_column, partial(plan_of, task, groups, rows=rows))
        groups = balanced(task, groups, attention, per_group, partial(plan_of, task, columns=columns, rows=rows))
        if (columns, groups) == before:  # whoever gave a whole group may have room for columns again
            break
    return plan_of(task, groups, columns, rows)


def capacities(task: Task) -> tuple[list[float], list[float], list[float]]:
    """Eq. 10 by block: the inverse of what each member takes for an attention, an MLP, and for the rows of norms.

    Under Scheme-2 the rows are those of the MLP too, so its time is in the third.
    """
    shape, costs, rows = task.shape, task.costs(), task.work.rows
    members = range(len(task.members))
    seen = (rows + 1) / 2 if shape.causal else rows
    attention = [costs.attention(member, rows, seen) for member in members]
    mlp = [costs.mlp(member, rows) for member in members]
    by_rows = [mlp[member] + 2 * costs.of(member, "norm", rows) for member in members]
    return inverse(attention), inverse(mlp), inverse(by_rows)


def plan_of(task: Task, groups: Parts, columns: Parts, rows: Sequence[float], second: int = 0) -> GroupPlan:
    """P layers of Scheme-1 behind Q = `second` of Scheme-2. Tiles overlap, as in the paper."""
    one = Hybrid(groups, columns, tuple(rows))
    two = Hybrid(groups, columns, tuple(rows), mlp_by_rows=True)
    layers = (two,) * second + (one,) * (task.shape.layers - second)
    return GroupPlan(MODE, task.members, task.portal, layers)


def balanced(
    task: Task, parts: Parts, capacity: Sequence[float], unit_bytes: int, plan: Callable[[Parts], GroupPlan]
) -> Parts:
    """Lines 7 to 17: units of members without enough memory go to those with room, by the capacity of these.

    unit_bytes: of one unit in all layers. What nobody has room for stays where it is.
    """
    # Who gets the first unit gets the output's bias too, once a block.
    spare = sum(task.shape.attentions(layer) for layer in range(task.shape.layers)) * task.shape.row_bytes
    for _ in range(8 * len(parts)):
        found = task.held(plan(parts))
        budgets = {device.name: device.memory_bytes for device in task.profile.devices}
        room = [budgets[name] - found[name].total for name in task.members]
        over = next((at for at, left in enumerate(room) if left < 0 and parts[at]), None)
        free = {at: (left - spare) // unit_bytes for at, left in enumerate(room) if left - spare >= unit_bytes}
        if over is None or not free:
            return parts
        waiting = min(-(room[over] // unit_bytes), parts[over], sum(free.values()))
        parts = _shifted(parts, over, _placed(waiting, free, capacity))
    return parts


def _placed(waiting: int, free: dict[int, int], capacity: Sequence[float]) -> dict[int, int]:
    """Line 15: so many units go to each with room, by capacity, but never more than fit."""
    placed = dict.fromkeys(free, 0)
    while waiting:
        open_ = [at for at in free if placed[at] < free[at]]
        wanted = handed_out(waiting, [capacity[at] for at in open_])
        for at, more in zip(open_, wanted, strict=True):
            taken = min(more, free[at] - placed[at])
            placed[at] += taken
            waiting -= taken
    return placed


def _shifted(parts: Parts, source: int, placed: dict[int, int]) -> Parts:
    moved = [part + placed.get(at, 0) for at, part in enumerate(parts)]
    moved[source] -= sum(placed.values())
    return tuple(moved)
