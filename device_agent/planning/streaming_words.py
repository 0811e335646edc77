"""What members read while they compute, in words, as data, and as a picture of a step. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from device_agent.planning.interleaved import play_steps
from device_agent.planning.lan import Lan
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.played import Event, Played
from device_agent.planning.stages import segments_of, stages_of
from device_agent.planning.task import Task
from split_model.offload.units import Unit

WIDTH: Final = 72
"""Characters of a step."""

MARKS: Final = {"compute": "#", "link": ">", "read": "="}

NAMED: Final = 8
"""More units are counted instead."""


def steps_are_played(task: Task, plan: GroupPlan) -> bool:
    """Whether there is a step to be shown by the clock: that of a pipeline that streams, but of no encoder."""
    return bool(plan.streams and isinstance(plan.layers[0], Whole) and task.work.new and not task.shape.cross_layers)


def played_step(task: Task, plan: GroupPlan, sessions: int) -> Played:
    """A step of a pipeline for so many sessions, each a micro-batch of its own."""
    lan = Lan(task.profile, plan.members, plan.portal)
    cached = task.work.rows + task.work.new // 2
    return play_steps(task.shape, lan, task.costs(plan.members), replace(plan, micro_batches=sessions), 1, cached)


def streaming_lines(task: Task, plan: GroupPlan) -> Iterable[str]:
    """Segments; each member's units, ring and reads; what a token takes of one session, and of one for each member."""
    stages = stages_of(plan.layers)
    yield f"{segments_of(stages)} segments, {len(stages)} stages, {plan.micro_batches} micro-batches"
    yield from member_lines(task, plan)
    one = played_step(task, plan, 1)
    many = played_step(task, plan, len(plan.members))
    for words, found, sessions in (("one session", one, 1), ("a session for each device", many, len(plan.members))):
        token_ms = found.seconds / sessions * 1e3
        yield (
            f"{words}: {token_ms:.1f} ms a token, {found.bound / found.seconds:.0%} of it cannot be less; "
            f"{found.hidden:.0%} of reading is hidden"
        )


def member_lines(task: Task, plan: GroupPlan) -> Iterable[str]:
    """Each member's units, ring and reads; of an encoder and its decoder the decoder's are read for a step."""
    devices = {device.name: device for device in task.profile.devices}
    turn = task.shape.layers - task.shape.cross_layers if task.shape.cross_layers else 0
    for member, units in enumerate(plan.streamed):
        name = plan.members[member]
        if not units:
            yield f"{name} streams nothing"
            continue
        read = sum(plan.unit_bytes(task.shape, member, unit) for unit in units if unit.layer >= turn)
        reads = f"reads {read / 1e6:.1f} MB a step at {devices[name].read_bytes_s / 1e6:.0f} MB/s"
        yield f"{name} streams {_units(units)}; ring {plan.ring_bytes[member] / 1e6:.1f} MB, {reads}"


def streaming_facts(task: Task, plan: GroupPlan) -> dict[str, Any]:
    """The same for programs."""
    one, many = played_step(task, plan, 1), played_step(task, plan, len(plan.members))
    return {
        "segments": segments_of(stages_of(plan.layers)),
        "micro_batches": plan.micro_batches,
        "streamed": [[[unit.layer, unit.half] for unit in units] for units in plan.streamed],
        "ring_bytes": list(plan.ring_bytes),
        "sporadic_token_s": one.seconds,
        "bursty_token_s": many.seconds / len(plan.members),
        "read_bytes": list(one.read_bytes),
        "hidden": one.hidden,
        "bound_s": one.bound,
    }


def step_drawing(task: Task, plan: GroupPlan) -> str:
    """One step of one session: for each device what it computes (#), sends (>) and reads (=), from left to right."""
    found = played_step(task, plan, 1)
    names = [*plan.members, *([] if plan.portal in plan.members else [plan.portal])]
    width = max(map(len, names))
    lines = [f"{'':<{width}}  one step, {found.seconds * 1e3:.1f} ms: computes #, sends >, reads ="]
    for node, name in enumerate(names):
        for kind, mark in MARKS.items():
            of = [event for event in found.events if event.node == node and event.kind == kind]
            if kind == "compute" or of:
                shown = name if kind == "compute" else ""
                lines.append(f"{shown:<{width}}  {_row(of, found.seconds, mark)}")
    return "\n".join(lines) + "\n"


def _row(events: Sequence[Event], seconds: float, mark: str) -> str:
    """What overlaps the step; where one ends is where the next begins, at that place in the next step."""
    cells = ["."] * WIDTH
    for event in events:
        first = int(event.begin / seconds * WIDTH)
        for cell in range(first, max(first + 1, round(event.end / seconds * WIDTH))):
            cells[cell % WIDTH] = mark
    return "".join(cells)


def _units(units: Sequence[Unit]) -> str:
    if len(units) <= NAMED:
        return ", ".join(f"{unit.half} {unit.layer}" for unit in units)
    attentions = sum(unit.half == "attention" for unit in units)
    return f"{attentions} attentions and {len(units) - attentions} MLPs"
