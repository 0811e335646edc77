"""A plan as plain data, for programs: what `describe` says in words. Pure."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import Any

from device_agent.planning.block_ways import block_ways
from device_agent.planning.describe import bound_by
from device_agent.planning.edgeformer import MODE as EDGEFORMER
from device_agent.planning.plan import GroupPlan, Layer
from device_agent.planning.streaming_words import steps_are_played, streaming_facts
from device_agent.planning.task import Task


def plan_facts(task: Task, plan: GroupPlan, fewer: GroupPlan | None = None) -> dict[str, Any]:
    """Numbers, texts and lists of them.

    fewer: a plan with fewer devices that is as fast or faster (`modes.fewer_devices`).
    """
    budgets = {device.name: device.memory_bytes for device in task.profile.devices}
    found = task.prefill(plan)
    sent = [sum(layer) for layer in zip(*found.sent, strict=True)]
    facts: dict[str, Any] = {
        "mode": plan.mode,
        "members": list(plan.members),
        "portal": plan.portal,
        "layers": list(_runs(plan.layers)),
        "devices": [
            {
                "name": name,
                "memory_bytes": held.total,
                "memory_budget_bytes": budgets[name],
                "computing_s": found.busy[node],
                "sent_bytes": sent[node],
            }
            for node, (name, held) in enumerate(task.held(plan).items())
        ],
        "prompt_rows": task.work.rows,
        "prompt_s": found.seconds,
        "prompt_bound_by": bound_by(task, plan, task.work.prefill)[1],
    }
    if task.work.new:
        step, why = bound_by(task, plan, task.work.step)
        facts |= {"new_tokens": task.work.new, "new_token_s": step.seconds, "new_token_bound_by": why}
        if steps_are_played(task, plan):
            facts |= streaming_facts(task, plan)
    if plan.considered:
        facts["considered"] = [{"way": name, "work_s": seconds} for name, seconds in plan.considered]
    if plan.mode == EDGEFORMER and (ways := block_ways(task)):
        facts["blocks"] = [{"way": each.name, "runs": each.runs, "work_s": each.seconds} for each in ways]
    if plan.transfers:
        targets = [None if each is None else plan.members[each.target] for each in plan.transfers]
        facts["keys_values_may_lie_at"] = dict(zip(plan.members, targets, strict=True))
    return facts | {"fewer": None if fewer is None else plan_facts(task, fewer)}


def _runs(layers: tuple[Layer, ...]) -> list[dict[str, Any]]:
    """Each run of layers that are computed alike, with its form and what the form says."""
    found, number = [], 0
    for layer, run in groupby(layers):
        count = len(list(run))
        form = {"form": type(layer).__name__, **asdict(layer)}
        found.append({"first": number, "last": number + count - 1, **form})
        number += count
    return found
