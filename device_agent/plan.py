"""`python -m device_agent.plan`, which is `trilby plan`: who would hold and compute what, before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import MISSING, dataclass
from typing import Any, Final, cast

import click

from device_agent.group.formation.trying import trial_name
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.planning.describe import description, drawing, lined_up, seconds_text
from device_agent.planning.facts import plan_facts
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.modes import PLANNERS, fewer_devices, plan_for
from device_agent.planning.plan import GroupPlan
from device_agent.planning.profile import MAX_BYTES, Profile, read
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Task, Work
from device_agent.planning.trials import trial_of
from device_agent.profiling.tried import tried_before
from service.settings import changed, setting, settings_command
from service.shared_settings import ModelSettings
from service.stopping import end_at_once
from split_model.checkpoint import Checkpoint
from split_model.errors import ModelError
from split_model.hub import identity, resolve
from split_model.spec import ModelSpec

ALL: Final = "all"

EXAMPLES = """
trilby plan --mode all --model ~/models/Qwen3-0.6B --profiles home.json
trilby plan --mode galaxy --model ~/models/Qwen3-0.6B --profiles home.json --prompt 2000 --new 200 --draw
"""


@dataclass(frozen=True)
class PlanConfig:
    """Say which device of a group would hold and compute what of a model, what that takes, and what bounds it.

    Nothing is loaded; times are predicted from what trilby profile has measured.
    """

    mode: str = setting(
        help="how the group works, or all: to compare all ways", choices=(*PLANNERS, ALL), variable="plan_mode"
    )
    model: str = changed(ModelSettings, "model", MISSING)
    profiles: str = setting(help="file that trilby profile has written")
    prompt: int = setting(
        512, "tokens of a prompt, or of a text that is read; more than the model takes: as many as that", minimum=1
    )
    new: int = setting(64, "tokens generated behind it; 0 for a model that reads only", minimum=0)
    portal: str = setting("", "device that has the text, and asks the others; empty: the profile's first")
    draw: bool = setting(False, "also draw how busy and how full each device is")
    json: bool = setting(False, "print data for programs instead of text", variable="plan_json")


def run(config: PlanConfig) -> None:
    """Plan and print."""
    end_at_once()
    try:
        checkpoint = Checkpoint.open(resolve(config.model, only=lambda _: [], attention=None), None)
        task = task_of(config, checkpoint.spec, _profile(config.profiles, identity(checkpoint)))
    except (ModelError, ValueError, OSError) as error:
        raise SystemExit(f"Cannot plan: {error}") from None
    (_compare if config.mode == ALL else _show)(config, task)


def task_of(config: PlanConfig, spec: ModelSpec, profile: Profile) -> Task:
    """What is asked. Raises ValueError for a portal that was not measured."""
    names = tuple(device.name for device in profile.devices)
    portal = config.portal or names[0]
    if portal not in names:
        raise ValueError(f"the profile has no {portal!r}; it has {', '.join(names)}")
    rows, most = config.prompt, spec.position_limit
    if spec.patches is not None:
        rows = 1 + spec.patches.count
    elif most is not None:
        rows = min(rows, most)
    if spec.attention == "bidirectional":
        work = Work(rows, 0, rows)
    else:
        new = config.new if most is None or spec.attention == "cross" else min(config.new, most - rows)
        work = Work(rows, new)
    return Task(ModelShape.of(spec, profile.dtype), profile, names, portal, work)


def _profile(path: str, digest: str) -> Profile:
    with open(path, "rb") as file:
        return read(file.read(MAX_BYTES + 1), digest)


def _show(config: PlanConfig, task: Task) -> None:
    plan, why, fewer = _planned(config.mode, task)
    if plan is None:
        if config.json:
            click.echo(json.dumps({"mode": config.mode, "error": why, "fewer": _facts(task, fewer)}, indent=1))
        hint = "" if fewer is None else f"\nIt would fit by {_named(fewer)}."
        raise SystemExit(f"{why}{hint}")
    if config.json:
        click.echo(json.dumps({**plan_facts(task, plan, fewer), "tried": _tried(task, plan)}, indent=1))
        return
    click.echo(description(task, plan, fewer), nl=False)
    if tried := _tried(task, plan):
        click.echo(tried)
    if config.draw:
        click.echo("\n" + drawing(task, plan), nl=False)


def _tried(task: Task, plan: GroupPlan) -> str:
    """What a group has tried of this plan, or will; "" where there is nothing to try."""
    trial = trial_of(task, plan)
    if trial is None:
        return ""
    joined = JoinedPlan.of(plan, task.profile.digest, cast(Any, task.profile.dtype), 0, 0)
    tried = tried_before(trial_name(joined, trial))
    return f"will try {', '.join(trial.words)} when the group forms" if tried is None else str(tried)


def _compare(config: PlanConfig, task: Task) -> None:
    """All modes in one table, the fastest first, those that do not fit last."""
    found = {mode: _planned(mode, task) for mode in PLANNERS}
    if config.json:
        everything = [
            {"mode": mode, "error": why, "fewer": _facts(task, fewer)}
            if plan is None
            else plan_facts(task, plan, fewer)
            for mode, (plan, why, fewer) in found.items()
        ]
        click.echo(json.dumps(everything, indent=1))
        return
    fit = {mode: plan for mode, (plan, _, _) in found.items() if plan is not None}
    click.echo("\n".join(lined_up(_rows(task, sorted(fit.values(), key=task.seconds)))))
    for mode, (plan, why, fewer) in found.items():
        if plan is None:
            click.echo(why)
        if fewer is not None and mode != "local":
            click.echo(f"{mode}: fewer devices would do as well or better: {_named(fewer)}, {_times(task, fewer)}")
    if config.draw and fit:
        click.echo("\n" + drawing(task, min(fit.values(), key=task.seconds)), nl=False)
    if not fit:
        raise SystemExit("No way fits these devices.")


def _planned(mode: str, task: Task) -> tuple[GroupPlan | None, str, GroupPlan | None]:
    """A mode's plan, or why there is none; and one for fewer devices that is as good."""
    plan, why = None, ""
    try:
        plan = plan_for(mode, task)
    except DoesNotFit as error:
        why = str(error)
    return plan, why, fewer_devices(mode, task, plan)


def _rows(task: Task, plans: Iterable[GroupPlan]) -> Iterable[tuple[str, ...]]:
    generates = task.work.new
    yield "mode", "devices", "prompt", *(("new token", "all") if generates else ()), "fullest memory"
    budgets = {device.name: device.memory_bytes for device in task.profile.devices}
    for plan in plans:
        fullest = max(held.total / max(budgets[name], 1) for name, held in task.held(plan).items())
        times = [task.prefill(plan).seconds]
        times += [task.step(plan).seconds, task.seconds(plan)] if generates else []
        yield plan.mode, str(len(plan.members)), *map(seconds_text, times), f"{fullest:.0%}"


def _named(plan: GroupPlan) -> str:
    return f"{plan.mode} on {', '.join(plan.members)}"


def _times(task: Task, plan: GroupPlan) -> str:
    step = f", each new token {seconds_text(task.step(plan).seconds)}" if task.work.new else ""
    return f"prompt {seconds_text(task.prefill(plan).seconds)}{step}"


def _facts(task: Task, plan: GroupPlan | None) -> dict[str, Any] | None:
    return None if plan is None else plan_facts(task, plan)


main = settings_command(PlanConfig, run, name="trilby plan", examples=EXAMPLES)

if __name__ == "__main__":
    main(prog_name=main.name)
