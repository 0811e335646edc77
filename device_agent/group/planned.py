"""The planner of the product's modes: from what was measured to a plan, and what that plan expects of each member."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from device_agent.planning.modes import SAME, fewer_devices, plan_for
from device_agent.planning.plan import GroupPlan
from device_agent.planning.profile import Profile
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Task, Work
from device_agent.planning.timeline import ForwardPass, predict
from split_model.spec import ModelSpec

log = structlog.get_logger()


class ModePlanner:
    """Plans by a mode's name, for all members as asked; with the first plan it says where fewer would do, and with
    ``fewer`` has only those compute. Plans that it has made before it makes at once.

    Args:
        mode: see ``modes.PLANNERS``.
        dtype: of weights and rows.
        portal: its name.
        work: what the group is to be good at.
        first_layer: of the model, the first that the group computes.
        fewer: whether members without whom it would be as fast do nothing.

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
        self._made: dict[tuple[str, ...], tuple[Profile, GroupPlan]] = {}
        self._task: Task | None = None
        self._plan: GroupPlan | None = None
        self._expected: dict[tuple[int, int], tuple[float, ...]] = {}

    def __call__(self, profile: Profile, names: Sequence[str]) -> GroupPlan:
        """A plan for these members.

        Raises ``DoesNotFit``, saying who lacks how much, and ``ValueError`` for a mode that there is not or a device
        that was not measured.
        """
        task = Task(self._shape, profile, tuple(names), self._portal, self._work)
        made = self._made.get(tuple(names))
        plan = made[1] if made is not None and made[0] == profile else plan_for(self._mode, task)
        # To look for fewer takes as long again, or longer: once a group works, answers wait for its next plan.
        looks = len(names) > 1 and (self._fewer or not self._made)
        self._made[tuple(names)] = profile, plan
        better = fewer_devices(self._mode, task, plan) if looks else None
        self.remark = ""
        if better is not None:
            faster = task.seconds(better) < task.seconds(plan) * (1 - SAME)
            self.remark = f"{', '.join(better.members)} alone would be as fast"
            if faster:
                times = f"{task.seconds(better):.2f} s instead of {task.seconds(plan):.2f}"
                self.remark = f"{', '.join(better.members)} alone would be faster: {times}"
            log.info("fewer devices would do", mode=self._mode, members=list(plan.members), why=self.remark)
        chosen = better if better is not None and self._fewer else plan
        self._task, self._plan = task, chosen
        self._expected.clear()
        return replace(chosen, mode=self._mode)

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


def _rounded(count: int) -> int:
    return 1 << (count - 1).bit_length() if count else 0
