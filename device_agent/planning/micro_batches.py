"""In how many parts the rows of several sessions' steps pass through a pipeline. Pure."""

from __future__ import annotations

from dataclasses import replace

from device_agent.planning.interleaved import play_steps
from device_agent.planning.lan import Lan
from device_agent.planning.plan import GroupPlan
from device_agent.planning.stages import segments_of, stages_of
from device_agent.planning.task import Task


def in_micro_batches(task: Task, plan: GroupPlan) -> GroupPlan:
    """A pipeline that was planned for one session, with as many micro-batches as make steps of as many sessions as
    there are members fastest. One session's step stays as it is: it has a single row.

    Where a row more costs as much as the first, each session is best a micro-batch of its own; where it costs nothing,
    as in products that wait for weights, fewer may do. A plain pipeline has several steps under way instead.
    """
    sessions, plain = len(plan.members), not plan.streams and segments_of(stages_of(plan.layers)) == 1
    if task.work.sessions > 1 or not task.work.new or plain or sessions == 1:
        return plan
    lan, costs = Lan(task.profile, plan.members, plan.portal), task.costs(plan.members)
    cached = task.work.rows + task.work.new // 2

    def seconds(micro_batches: int) -> float:
        cut = replace(plan, micro_batches=micro_batches)
        return play_steps(task.shape, lan, costs, cut, sessions / micro_batches, cached).seconds

    return replace(plan, micro_batches=min(range(1, sessions + 1), key=seconds))
