"""The planner of the product's modes: from what was measured to a plan, and what that plan expects of each member."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from device_agent.group.formation.planning_apart import Wish, made_apart
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.modes import SAME, fewer_devices, plan_for
from device_agent.planning.plan import GroupPlan
from device_agent.planning.profile import Profile
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Task, Work
from device_agent.planning.timeline import ForwardPass, predict
from device_agent.planning.trials import Trial, trial_of
from peers.exchange import DONE_WITHIN_S
from split_model.spec import ModelSpec

MAX_MADE: Final = 64
"""Plans that are remembered."""

log = structlog.get_logger()


@dataclass(frozen=True)
class _Made:
    """What was planned for the same members; None: it does not fit. ``better``: for fewer that would do; None: for
    nobody, or nobody has looked (``looked``)."""

    profile: Profile
    plan: GroupPlan | None
    better: GroupPlan | None
    looked: bool


class ModePlanner:
    """Plans by a mode's name, for all members as asked; with the first plan it says where fewer would do, and with
    ``fewer`` has only those compute. Plans that it has made before it makes at once. A plan is
    asked for on one thread at a time.

    Args:
        mode: see ``modes.PLANNERS``.
        dtype: of weights and rows.
        portal: its name.
        work: what the group is to be good at.
        first_layer: of the model, the first that the group computes.
        fewer: whether members without whom it would be as fast, or who have too little memory, do nothing.

    Attributes:
        remark: what there is to say of the last plan, "" for nothing.
    """

    def __init__(
        self,
        mode: str,
        spec: ModelSpec,
        dtype: str,
        portal: str,
        work: Work,
        *,
        first_layer: int = 0,
        fewer: bool = False,
    ) -> None:
        shape = ModelShape.of(spec, dtype)
        self.remark = ""
        self._mode, self._portal, self._work, self._fewer = mode, portal, work, fewer
        self._shape = replace(shape, layers=shape.layers - first_layer)
        self._made: dict[tuple[str, ...], _Made] = {}
        self._lock = threading.Lock()
        """Plans are kept on two threads: where they are asked for, and on the event loop."""
        self._task: Task | None = None
        self._plan: GroupPlan | None = None
        self._expected: dict[tuple[int, int], tuple[float, ...]] = {}

    def __call__(self, profile: Profile, names: Sequence[str]) -> GroupPlan:
        """A plan for these members.

        Raises ``DoesNotFit``, saying who lacks how much, and ``ValueError`` for a mode that there is not or a device
        that was not measured.
        """
        task = Task(self._shape, profile, tuple(names), self._portal, self._work)
        # To look for fewer takes as long again, or longer: once a group works, answers wait for its next plan.
        looks = len(names) > 1 and (self._fewer or not self._made)
        made = self._known(profile, task.members) or _Made(profile, self._for_all(task), None, False)
        if looks and not made.looked:
            made = replace(made, better=fewer_devices(self._mode, task, made.plan), looked=True)
        self._keep(task.members, made)
        self.remark = self._remark(task, made)
        chosen = made.better if made.plan is None or (made.better is not None and self._fewer) else made.plan
        if chosen is None:
            plan_for(self._mode, task)  # Says who lacks how much.
        assert chosen is not None
        self.remark = "; ".join(filter(None, [self.remark, _slowness(task, chosen)]))
        self._task, self._plan = task, chosen
        self._expected.clear()
        return replace(chosen, mode=self._mode)

    async def ahead(self, profile: Profile, names: Sequence[str]) -> None:
        """Have the plan for these members made by another process, to be remembered; nothing where there is none."""
        members = tuple(names)
        if self._known(profile, members) is not None:
            return
        looks = self._fewer and len(members) > 1
        wish = Wish(self._mode, self._shape, profile, members, self._portal, self._work, looks)
        found = await made_apart(wish)
        if found is not None and self._known(profile, members) is None:
            self._keep(members, _Made(profile, *found, looks))

    def _known(self, profile: Profile, members: tuple[str, ...]) -> _Made | None:
        made = self._made.get(members)
        return made if made is not None and made.profile == profile else None

    def _keep(self, members: tuple[str, ...], made: _Made) -> None:
        with self._lock:
            self._made.pop(members, None)
            while len(self._made) >= MAX_MADE:
                del self._made[next(iter(self._made))]
            self._made[members] = made

    def _for_all(self, task: Task) -> GroupPlan | None:
        """The plan for all; None where it does not fit and fewer may do."""
        try:
            return plan_for(self._mode, task)
        except DoesNotFit:
            if not self._fewer or len(task.members) == 1:
                raise
            return None

    def _remark(self, task: Task, made: _Made) -> str:
        plan, better = made.plan, made.better
        if better is None:
            return ""
        does = "is" if self._fewer else "would be"
        who = f"{', '.join(better.members)} alone {does}"
        if plan is None:
            said = f"{', '.join(better.members)} alone: with all members it does not fit"
        elif task.seconds(better) < task.seconds(plan) * (1 - SAME):
            said = f"{who} faster: {task.seconds(better):.2f} s instead of {task.seconds(plan):.2f}"
        else:
            said = f"{who} as fast"
        log.info("fewer devices would do", mode=self._mode, members=list(task.members), why=said)
        return said

    def expects(self, rows: int, position: int) -> tuple[float, ...]:
        """Seconds that each member of the last plan computes, by place, for so many rows behind ``position`` others.

        Sizes are rounded up to powers of two: the members are compared with one another.
        """
        if self._task is None or self._plan is None:
            return ()
        key = _rounded(rows), _rounded(position)
        if key not in self._expected:
            busy = predict(self._shape, self._task.profile, self._plan, ForwardPass(*key)).busy
            self._expected[key] = busy[: len(self._plan.members)]
        return self._expected[key]

    def task(self, plan: GroupPlan) -> Task | None:
        """What was asked last, of the members of a plan alone; None where these were not measured, or nothing was."""
        if self._task is None or not set(plan.members) <= {device.name for device in self._task.profile.devices}:
            return None
        return replace(self._task, members=plan.members)

    def trial(self) -> Trial | None:
        """What is to be tried of the last plan; None: nothing."""
        return None if self._task is None or self._plan is None else trial_of(self._task, self._plan)

    def reads(self) -> tuple[float, ...]:
        """Seconds that each member of the last plan reads its disk in a step, by place; () where nobody does. Of what
        lies coded there fewer bytes are read than it has in memory."""
        if self._task is None or self._plan is None or not self._plan.streams:
            return ()
        plan = self._plan
        devices = {device.name: device for device in self._task.profile.devices}
        found: list[float] = []
        for place, (name, units) in enumerate(zip(plan.members, plan.streamed, strict=True)):
            device, size = devices[name], sum(plan.unit_bytes(self._shape, place, unit) for unit in units)
            share = device.decoding.share if plan.codes(place) and device.decoding is not None else 1.0
            found.append(share * size / device.read_bytes_s if units else 0.0)
        return tuple(found)


def _rounded(count: int) -> int:
    return 1 << (count - 1).bit_length() if count else 0


def _slowness(task: Task, plan: GroupPlan) -> str:
    """That a step takes so long by a plan that members may give each other up; "" where it does not."""
    step_s = max(task.prefill(plan).seconds, task.step(plan).seconds if task.work.new else 0.0)
    if step_s < DONE_WITHIN_S / 2:
        return ""
    return (
        f"a step is expected to take {step_s:.0f} s, and who waits for another member gives up after "
        f"{DONE_WITHIN_S:g} s: read shorter prompts, or use more devices, faster disks or a smaller model"
    )
