"""What LIME is compared with, on the same timeline: pipelines of one segment that read what does not fit. Pure.

Each raises DoesNotFit where not even one unit at a time fits beside the keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec.structs import replace as changed

from device_agent.planning.allocation import Allocation, Held
from device_agent.planning.edgeshard import plan_edgeshard
from device_agent.planning.lime_allocations import in_one_segment, layers_by_memory, planned, rooms_of, sizes_of
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.residency import Residency
from device_agent.planning.task import Task

UNBOUNDED = 1 << 60
"""Bytes of memory for everything."""


def plan_pipeline_offloaded(task: Task, prefetch: bool = True) -> GroupPlan:
    """Pipeline + offloading: layers by the members' memory, and a ring of one unit.

    prefetch: whether a unit is read as soon as the one before is used; else when it is needed.
    """
    return _offloaded(task, "pipeline", layers_by_memory(task), prefetch)


def plan_edgeshard_offloaded(task: Task, prefetch: bool = True) -> GroupPlan:
    """EdgeShard's partition as if there were memory for all, with a ring of one unit for what there is none for."""
    devices = tuple(changed(device, memory_bytes=UNBOUNDED) for device in task.profile.devices)
    free = replace(task, profile=changed(task.profile, devices=devices), _costs={})
    found = plan_edgeshard(free)
    among = replace(task, members=found.members)
    counts = [sum(layer == Whole(member) for layer in found.layers) for member in range(len(found.members))]
    return _offloaded(among, "edgeshard", counts, prefetch)


def _offloaded(task: Task, mode: str, counts: Sequence[int], prefetch: bool) -> GroupPlan:
    sizes, rooms = sizes_of(task), rooms_of(task, task.work.sessions if task.work.new else task.work.rows)
    found = in_one_segment(counts, rooms, sizes)
    if found is None:
        unit = max(sizes.attention, sizes.mlp)
        everything = tuple(Held(count, Residency(count, count, unit), 0.0, 0.0) for count in counts)
        plan = planned(task, Allocation(1, everything, 0.0), 1)
        raise DoesNotFit(mode, task.lacks(plan))
    return task.fitting(replace(planned(task, found, 1), mode=mode, prefetch=prefetch))
