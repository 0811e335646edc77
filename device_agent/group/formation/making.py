"""How the portal makes plans: of what was measured, for whoever takes part."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import structlog

from device_agent.group.formation.company import Company
from device_agent.group.formation.measures import Measures
from device_agent.group.formation.measuring import measure_as_portal
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.group.steps.handing import can_hand
from device_agent.planning.handover import can_hand_over, handover
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.plan import GroupPlan
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Task, Work
from device_agent.planning.trials import Trial
from device_agent.profiling.kept_profiles import keep
from split_model.checkpoint import Checkpoint
from split_model.hub import identity

Planner = Callable[[Any, Sequence[str]], GroupPlan]
"""From what was measured, a ``Profile`` (None where nothing is), and the names of the members that there are, to a plan
for the group's layers. Raises ``ValueError`` where there is none."""

Ahead = Callable[[Any, Sequence[str]], Awaitable[None]]
"""Of the same, that the planner may remember the plan; on the event loop."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Planned:
    """For whom it was planned, what, and what of it is to be tried; who has nothing to do is not in the plan."""

    names: tuple[str, ...]
    plan: JoinedPlan
    trial: Trial | None = None


@dataclass(frozen=True)
class PlanMaker:
    """Attributes as those of ``GroupHost``; ``portal`` is its name there. ``measures``: None where nothing is
    measured. ``ahead``: has a plan made before it is needed; None: nothing can. ``trial``: of the last plan."""

    checkpoint: Checkpoint
    planner: Planner
    dtype: Literal["float32", "bfloat16", "float16"]
    first_layer: int
    positions: int
    portal: str
    measures: Measures | None
    ahead: Ahead | None = None
    trial: Callable[[], Trial | None] = lambda: None

    def lacks_links(self, names: Sequence[str]) -> bool:
        """Whether links have to be measured before there can be a plan for these members."""
        return self.measures is not None and not self.measures.knows_links(self._nodes(names))

    async def measure_links(self, company: Company, names: Sequence[str]) -> None:
        """See ``measure_as_portal``; what is known of these devices then is kept on disk, for ``trilby plan``."""
        assert self.measures is not None
        nodes = self._nodes(names)
        await measure_as_portal(company, self.portal, nodes[1:], self.measures)
        try:
            kept = await asyncio.to_thread(keep, self.measures.profile(nodes))
        except OSError as error:
            log.warning("what was measured of the group cannot be kept", why=str(error))
        else:
            log.info("what was measured of the group is kept", profile=str(kept))

    async def plan(self, names: tuple[str, ...], fewer: bool = False) -> Planned:
        """For all of these; with ``fewer`` without those who have too little memory for that.

        Raises ``ValueError`` where there is none, ``DoesNotFit`` for one that says who lacks what.
        """
        try:
            return await self._plan(names)
        except DoesNotFit as error:
            short = {lack.device for lack in error.lacks}
            rest = tuple(name for name in names if name not in short)
            if not fewer or not rest or rest == names:
                raise
            log.warning("planned without who has too little memory", without=sorted(short), why=str(error))
            return await self.plan(rest, fewer)

    async def _plan(self, names: tuple[str, ...]) -> Planned:
        profile = None if self.measures is None else self.measures.profile(self._nodes(names))
        plan = await asyncio.to_thread(self.planner, profile, names)
        if not set(plan.members) <= set(names):
            raise ValueError(f"the plan is for {', '.join(plan.members)}")
        joined = JoinedPlan.of(plan, identity(self.checkpoint), self.dtype, self.first_layer, self.positions)
        joined.layers(self.checkpoint.spec)
        return Planned(names, joined, await asyncio.to_thread(self.trial))

    async def prepare(self, names: Sequence[str]) -> None:
        """Have the plan for these members made beforehand, where that can be, so that ``plan`` has it at once."""
        if self.ahead is None or self.measures is None or not names or self.lacks_links(names):
            return
        with suppress(ValueError):  # Somebody was not measured.
            await self.ahead(self.measures.profile(self._nodes(names)), names)

    def hands_over(self, before: JoinedPlan, after: JoinedPlan, lengths: Sequence[int]) -> bool:
        """Whether sessions with so many positions each go on sooner where members hand them over, than replayed; where
        nothing is measured they are handed over."""
        spec = self.checkpoint.spec
        plans = before.as_planned(self.portal), after.as_planned(self.portal)
        if not any(lengths) or not can_hand(plans[0], spec) or not can_hand_over(*plans):
            return False
        if self.measures is None:
            return True
        names = tuple(dict.fromkeys([*before.names, *after.names]))
        shape = replace(ModelShape.of(spec, self.dtype), layers=len(plans[0].layers))
        try:
            task = Task(shape, self.measures.profile(self._nodes(names)), names, self.portal, Work(max(lengths)))
        except ValueError:  # Somebody is measured again.
            return False
        return handover(task, *plans, lengths).pays

    def _nodes(self, names: Sequence[str]) -> list[str]:
        return [self.portal, *(name for name in names if name != self.portal)]
