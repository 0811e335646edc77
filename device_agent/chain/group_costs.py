"""What prompts take in a group, with all heads and with none: asked of its members while nobody waits for an answer,
and between others' steps where there is no such moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import torch

from device_agent.chain.model_ends import DeviceParts
from device_agent.chain.pass_costs import ENOUGH_S, REPEATS, Clock, is_enough, lengths
from device_agent.chain.pruning import PrunedLayers
from device_agent.group.asking.life import GroupLife
from device_agent.group.asking.submodel import GroupSubmodel
from device_agent.planning.pruning import PassCosts
from device_agent.sharing.compute import Lane
from split_model.stack import Span

LOOK_EVERY_S: Final = 0.005
"""Whether anybody still waits for an answer is looked at so often: a client that asks again at once leaves gaps."""

PATIENCE_S: Final = 5.0
"""Behind so long a pass goes between the steps of those who wait."""

MOST_OF_TIME: Final = 0.1
"""Of a group that is never idle so much goes into passes."""

MeasureGroup = Callable[[GroupLife, PrunedLayers], Awaitable[PassCosts | None]]
"""What ``GroupCosts.measured`` is."""


@dataclass(frozen=True)
class GroupCosts:
    """Times passes through this device's layers and the group's.

    Attributes:
        longest: positions of one request, 2 or more.
    """

    parts: DeviceParts
    group: GroupSubmodel
    lane: Lane
    longest: int
    clock: Clock = perf_counter

    async def measured(self, life: GroupLife, bare: PrunedLayers) -> PassCosts | None:
        """In a life of the group; None where it ends meanwhile. Who asks for an answer waits for one pass at most, and
        rarely.

        bare: the layers without any head. Raises SessionFailed.
        """
        rows: list[int] = []
        taken: list[tuple[float, float]] = []
        for layers in (None, bare):  # What members make at the first use of a layer is no part of a prompt's time.
            if await self._best(life, 1, layers) is None:
                return None
        for count in lengths(self.longest):
            if is_enough(rows, taken):
                break
            whole_s, bare_s = await self._best(life, count, None), await self._best(life, count, bare)
            if whole_s is None or bare_s is None:
                return None
            rows.append(count)
            taken.append((whole_s, bare_s))
        return PassCosts(tuple(rows), tuple(each[0] for each in taken), tuple(each[1] for each in taken))

    async def _best(self, life: GroupLife, rows: int, layers: PrunedLayers | None) -> float | None:
        """The shortest time of a few. None where the life has ended."""
        taken: list[float] = []
        since = self.clock()
        while len(taken) < REPEATS and sum(taken) <= ENOUGH_S:
            if self.group.life is not life:
                return None
            others_wait = self.group.busy
            if others_wait and self.clock() - since < PATIENCE_S:
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            taken.append(await self._seconds(life, rows, layers))
            if others_wait:
                await asyncio.sleep(taken[-1] * (1 / MOST_OF_TIME - 1))
            since = self.clock()
        return min(taken) if self.group.life is life else None

    async def _seconds(self, life: GroupLife, rows: int, layers: PrunedLayers | None) -> float:
        """Of one pass, for which others wait: steps that were under way are over before, those of who came later are
        behind it."""
        front, rest = (self.parts.front, ()) if layers is None else (layers.front, layers.rest)
        ids = torch.zeros(rows, dtype=torch.int64)

        def shallow() -> torch.Tensor:
            hidden = self.parts.embedding.forward(ids)
            return front.forward(hidden, [Span(front.new_cache(rows), rows)]) if front.blocks else hidden

        session = self.group.open(rows, rows, rows, rest)
        try:
            with life.alone(session.record.session):
                await session.forward(torch.zeros((1, self.group.hidden_size), dtype=self.group.dtype), 1)
                session.truncate(0)
                began = self.clock()
                await session.forward(await self.lane.submit(shallow), 1)
                return self.clock() - began
        finally:
            session.close()
