"""What Voltage and Galaxy+ are compared with, as plans of the same language. Pure.

Each raises DoesNotFit where it fits no way.
"""

from __future__ import annotations

from collections.abc import Sequence

from device_agent.planning.block_allocation import BlockDevice, NoRoom, by_efficiency
from device_agent.planning.edgeshard import layers_room
from device_agent.planning.galaxy import plan_algorithm_1
from device_agent.planning.plan import ByRows, GroupPlan, Sharded, Whole
from device_agent.planning.ratios import by_speed, even
from device_agent.planning.shares import handed_out
from device_agent.planning.task import Task


def plan_tensor(task: Task, shares: Sequence[float] | None = None) -> GroupPlan:
    """Megatron-LM: two all-reduces a layer and nothing overlapped; even shares, as in the papers, unless given."""
    shares = shares or even(task)
    layer = Sharded(handed_out(task.shape.kv_heads, shares), handed_out(task.shape.intermediate, shares))
    return task.fitting(GroupPlan("tensor", task.members, task.portal, (layer,) * task.shape.layers))


def plan_sequence(task: Task, shares: Sequence[float] | None = None) -> GroupPlan:
    """Sequence parallelism: two all-gathers a layer, of keys and of values, and nothing overlapped; even shares unless
    given. Every member has all weights."""
    at = task.members.index(task.portal) if task.portal in task.members else 0
    layer = ByRows(tuple(shares or even(task)), Whole(at), keys_values=True, overlap=False)
    return task.fitting(GroupPlan("sequence", task.members, task.portal, (layer,) * task.shape.layers))


def plan_galaxy(task: Task) -> GroupPlan:
    """Galaxy, before Galaxy+: Algorithm 1 with Scheme-1 only."""
    return plan_algorithm_1(task, scheme_2=False)


def plan_pipeline(task: Task, shares: Sequence[float] | None = None) -> GroupPlan:
    """Whole layers one behind the other, in the order of the members; even shares unless given."""
    counts = handed_out(task.shape.layers, shares or even(task))
    layers = tuple(Whole(member) for member, count in enumerate(counts) for _ in range(count))
    return task.fitting(GroupPlan("pipeline", task.members, task.portal, layers))


def plan_by_efficiency(task: Task) -> GroupPlan:
    """EdgeFormer's own allocation of blocks: in the order of f / s (Eq. 2), the longest run that fits; nothing lent."""
    rooms = [layers_room(task, name, first=True) for name in task.members]
    devices = [BlockDevice(room, speed, 1 / speed) for room, speed in zip(rooms, by_speed(task), strict=True)]
    try:
        runs = by_efficiency(task.shape.layers, devices)
    except NoRoom:
        runs = ((0, task.shape.layers),)  # It does not fit, and that says who lacks how much.
    members = tuple(task.members[at] for at, _ in runs)
    layers = tuple(Whole(number) for number, (_, count) in enumerate(runs) for _ in range(count))
    return task.fitting(GroupPlan("edgeformer", members, task.portal, layers))


def plan_local(task: Task, member: str | None = None) -> GroupPlan:
    """All layers on one device: the portal unless another is named."""
    return task.fitting(GroupPlan("local", (member or task.portal,), task.portal, (Whole(0),) * task.shape.layers))
