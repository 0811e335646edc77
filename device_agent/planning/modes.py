"""The modes of groups by name, each with its planner, and whether fewer devices would do better. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import combinations

from device_agent.planning.baselines import plan_local, plan_sequence, plan_tensor
from device_agent.planning.edgeformer import plan_edgeformer
from device_agent.planning.edgeshard import plan_edgeshard
from device_agent.planning.fastest import plan_galaxy_or_pure
from device_agent.planning.few_rows import with_few_rows
from device_agent.planning.galaxy import plan_algorithm_1
from device_agent.planning.lime import plan_lime
from device_agent.planning.lime_halves import plan_halves
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.plan import GroupPlan
from device_agent.planning.ratios import by_speed
from device_agent.planning.task import Task
from device_agent.planning.voltage import plan_published, plan_voltage

Planner = Callable[[Task], GroupPlan]

PLANNERS: dict[str, Planner] = {
    "voltage": plan_voltage,
    "galaxy": plan_galaxy_or_pure,
    "tensor": lambda task: plan_tensor(task, by_speed(task)),
    "sequence": lambda task: plan_sequence(task, by_speed(task)),
    "pipeline": plan_edgeshard,
    "lime": lambda task: plan_halves(task) if task.shape.cross_layers else plan_lime(task),
    "edgeformer": plan_edgeformer,
    "local": plan_local,
}

_QUICK: dict[str, Planner] = {
    "voltage": lambda task: plan_published(task, by_speed(task)),
    "galaxy": plan_algorithm_1,
}
"""Planners whose plans tell promising sets of devices from others, where the mode's own takes seconds."""

_LEAVES_OUT = frozenset({"lime", "edgeformer"})
"""Modes whose planners leave members out by themselves where that is faster: no sets of devices are tried for them."""

ALL_SETS = 8
"""Among more members than that, the only sets tried are of the fastest: all of them are twice as many for each."""

TRIED = 2
"""Only so many promising sets are planned by the mode's own planner."""

SAME = 0.02
"""Times that differ by less than this share are the same: predictions are no better than that."""

LITTLE = 0.01
"""Who computes less than this share of what the busiest member does may as well do nothing."""


def plan_for(mode: str, task: Task) -> GroupPlan:
    """The mode's plan for all members. Raises ValueError for a mode there is not, DoesNotFit where memory is short."""
    if mode not in PLANNERS:
        raise ValueError(f"mode {mode!r} is not one of {', '.join(PLANNERS)}")
    try:
        return with_few_rows(task, replace(PLANNERS[mode](task), mode=mode, one_shot_bytes=task.profile.one_shot_bytes))
    except DoesNotFit as error:
        raise DoesNotFit(mode, error.lacks) from None


def fewer_devices(mode: str, task: Task, plan: GroupPlan | None) -> GroupPlan | None:
    """A plan of the same mode, or for one device, with fewer members that is as fast or faster; None if there is none.

    Of several that are as fast the one with fewest members.

    plan: for all members; None where none fits, and any plan with fewer is better.
    """
    found = [(task.seconds(other), other) for other in _with_fewer(mode, task, plan)]
    times = [seconds for seconds, _ in found]
    if plan is not None:
        times.append(task.seconds(plan))
    as_good = [(len(other.members), seconds, other) for seconds, other in found if seconds <= min(times) * (1 + SAME)]
    return min(as_good, key=lambda other: other[:2])[2] if as_good else None


def _with_fewer(mode: str, task: Task, plan: GroupPlan | None) -> list[GroupPlan]:
    """The plans of promising sets of members, of those who have something to do, and of each device alone."""
    most = len(plan.members if plan else task.members) - 1
    quick = _QUICK.get(mode, PLANNERS[mode])
    promising: list[tuple[float, tuple[str, ...]]] = []
    for count in range(1, most + 1) if mode not in _LEAVES_OUT else ():
        for members in _sets(task, count):
            found = _tried(quick, replace(task, members=members))
            if found is not None:
                promising.append((task.seconds(found), members))
    sets = [members for _, members in sorted(promising)[:TRIED]]
    if plan is not None:
        sets.append(_busy(task, plan))
    plans = [
        _tried(planner, replace(task, members=members))
        for members in sets
        if len(members) <= most
        for planner in dict.fromkeys((PLANNERS[mode], quick))
    ]
    plans += [_tried(partial(plan_local, member=member), task) for member in task.members if most]
    return [found for found in plans if found is not None]


def _sets(task: Task, count: int) -> Iterable[tuple[str, ...]]:
    """Sets of so many members that may be promising, each in the task's order."""
    if len(task.members) <= ALL_SETS:
        return combinations(task.members, count)
    speeds = dict(zip(task.members, by_speed(task), strict=True))
    fastest = sorted(task.members, key=lambda name: -speeds[name])[:count]
    return [tuple(name for name in task.members if name in fastest)]


def _busy(task: Task, plan: GroupPlan) -> tuple[str, ...]:
    """Members that have something to do with the prompt, in the task's order."""
    busy = task.prefill(plan).busy[: len(plan.members)]
    worth = {name for name, seconds in zip(plan.members, busy, strict=True) if seconds > LITTLE * max(busy)}
    return tuple(name for name in task.members if name in worth)


def _tried(planner: Planner, task: Task) -> GroupPlan | None:
    try:
        return planner(task)
    except DoesNotFit:
        return None
