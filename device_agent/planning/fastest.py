"""The fastest of several ways to plan, and among which it was chosen. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from device_agent.planning.baselines import plan_sequence, plan_tensor
from device_agent.planning.few_rows import with_few_rows
from device_agent.planning.joint import plan_jointly
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.plan import GroupPlan
from device_agent.planning.ratios import by_speed
from device_agent.planning.task import Task

NAMED = 6
"""So many of the ways that were considered are kept, the fastest."""

Way = tuple[str, Callable[[], GroupPlan]]
"""A name, and what makes the plan; it raises DoesNotFit where it cannot."""


def plan_galaxy_or_pure(task: Task) -> GroupPlan:
    """Mode galaxy's: what the search over shares and schemes finds, or one pure form where that is predicted to be
    faster, as on links that leave little to hide. Raises DoesNotFit, saying what the search lacks."""
    return fastest("galaxy", task, [("galaxy", partial(plan_jointly, task)), *pure_forms(task)])


def pure_forms(task: Task) -> Iterator[Way]:
    """Tensor and sequence parallelism by speed; the latter not where heads may be left out."""
    yield "tensor", lambda: plan_tensor(task, by_speed(task))
    if not task.work.prunes:
        yield "sequence", lambda: plan_sequence(task, by_speed(task))


def fastest(mode: str, task: Task, ways: Iterable[Way]) -> GroupPlan:
    """The plan of least time for all the work, of equals the first, `considered` saying among which. Raises DoesNotFit
    where none fits, saying what the first lacks."""
    found: dict[str, tuple[float, GroupPlan]] = {}
    lacks = None
    for name, planner in ways:
        try:
            plan = with_few_rows(task, replace(planner(), mode=mode, one_shot_bytes=task.profile.one_shot_bytes))
        except DoesNotFit as error:
            lacks = lacks or error
            continue
        seconds = task.seconds(plan)
        if name not in found or seconds < found[name][0]:
            found[name] = seconds, plan
    if not found:
        assert lacks is not None
        raise DoesNotFit(mode, lacks.lacks)
    named = sorted(found.items(), key=lambda each: each[1][0])
    considered = tuple((name, seconds) for name, (seconds, _) in named[:NAMED])
    return replace(named[0][1][1], considered=considered)
