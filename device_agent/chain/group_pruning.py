"""Which heads of a prompt are left out where a group of devices computes the layers.

Members have the layers, so the portal finds the order beforehand, with all layers in its memory for a while, and what
prompts take by asking the group, once in each of its lives, while nobody waits for an answer. Until then all heads are
computed. What a prompt takes is what it takes the last member: so heads are left out where they would end last.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Final
from weakref import WeakValueDictionary

import structlog
import torch

from device_agent.chain.calibrating import calibrated, order_by
from device_agent.chain.group_costs import GroupCosts, MeasureGroup
from device_agent.chain.model_ends import DeviceParts
from device_agent.chain.pruning import PrunedLayers
from device_agent.group.asking.life import GroupLife
from device_agent.group.asking.submodel import NO_NARROW, GroupSubmodel, Placing
from device_agent.planning.group_levels import levels_in_group
from device_agent.planning.head_allocation import HeadTimes
from device_agent.planning.pruning import PassCosts, PruningPlan, work_share
from device_agent.sharing.compute import Compute
from split_model.checkpoint import Checkpoint
from split_model.free_memory import free_bytes
from split_model.host_memory import give_back
from split_model.hub import identity
from split_model.pruning.calibration import Calibration, Head
from split_model.pruning.kept import HeadSets, KeptHeads
from split_model.pruning.kept_calibration import kept_calibration
from split_model.pruning.orders import PruneBy, by_magnitude
from split_model.pruning.stack import NoRoomForSets, PrunedStacks
from split_model.pruning.watched import Layers
from split_model.slices import middle_slice, slice_bytes
from split_model.stack import Stack
from wire.errors import SessionFailed
from wire.within import within

BESIDE: Final = 1.25
"""Times the layers' bytes that have to be free for them to be calibrated here: rows, keys and values come besides."""

NOT_MEASURED: Final = "no head is left out until it is measured what prompts take"
"""What is said of a limit of time in a life that has just begun."""

MOST_IN_USE: Final = 3.0
"""Times attention's weights, that members may copy for all sets in use at once: as much as whole layers, about; fewer
where they have no memory for so many. One set may be in use always."""

AGAIN_S: Final = 30.0
"""Where a life cannot be measured now, for want of room say, that is tried again so often."""

log = structlog.get_logger()


@dataclass(frozen=True)
class GroupOrder:
    """In which order heads of all layers are left out, and what stands for them.

    Attributes:
        means: float32 ``[layers, heads, head_dim]``; None: nothing.
    """

    order: tuple[Head, ...]
    means: torch.Tensor | None


class _NoRoom(Exception):
    """The layers do not fit in this device's memory together."""


def group_order(
    checkpoint: Checkpoint, parts: DeviceParts, dtype: torch.dtype, by: PruneBy = "effect", budget: int = 0
) -> GroupOrder:
    """By a calibration that is kept or is made now, for which the group's layers are in memory meanwhile; where they
    have no room, by the size of the heads' weights, with nothing in their place. Raises ``BadCheckpoint``.

    budget: bytes that this device may use; 0: what is free."""
    spec = checkpoint.spec
    rest = middle_slice(spec, len(parts.front.blocks), 0)

    def make() -> Calibration:
        if slice_bytes(spec, rest, dtype) * BESIDE > min(free_bytes(), budget or sys.maxsize):
            raise _NoRoom
        front = (parts.front,) if parts.front.blocks else ()
        layers = Layers(parts.embedding, (*front, Stack.load(checkpoint, rest, dtype)), parts.head)
        return calibrated(layers, spec, perf_counter)

    try:
        found = kept_calibration(identity(checkpoint), str(dtype), make)
    except _NoRoom:
        log.warning(
            "heads are left out by the size of their weights: this device has no room for all layers, to measure what "
            "leaving them out changes; do so where there is room, with --mode local, and copy ~/.cache/trilby/pruning",
            lossy=True,
        )
        return GroupOrder(order_by(by, checkpoint) or by_magnitude(checkpoint), None)
    finally:
        give_back()
    return GroupOrder(order_by(by, checkpoint) or found.order, found.means)


@dataclass(frozen=True)
class _Known:
    """What prompts take in a life of the group; ``copies``: of attention's weights, that members have memory for."""

    life: GroupLife
    costs: PassCosts
    plan: PruningPlan
    copies: float


class GroupPruner:
    """A ``Pruner`` of a group's layers, and of this device's before them. Of use in a life of the group once ``run``
    has measured that."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        parts: DeviceParts,
        group: GroupSubmodel,
        compute: Compute,
        found: GroupOrder,
        limit_s: float,
        longest: int,
        times: Callable[[], Sequence[HeadTimes] | None],
        news: Callable[[], Awaitable[None]],
        measure: MeasureGroup | None = None,
        told: Callable[[], object] = lambda: None,
        copies: Callable[[], float] = lambda: MOST_IN_USE,
    ) -> None:
        """
        limit_s: seconds in which a prompt is to be read, ``--t-max``.
        longest: positions of one request, 2 or more.
        times: of each layer of the model what its heads take, in the life that there is, see ``levels_in_group``; None
            where there is none.
        news: waits until there may be another life.
        measure: None: as ``GroupCosts`` does.
        told: called where ``words`` are others than before.
        copies: how many copies of their attention's weights members have memory for, in the life that there is.
        """
        self.limit_s = limit_s
        self._spec, self._parts, self._group, self._lane = checkpoint.spec, parts, group, compute.lane()
        self._order, self._times, self._news = found.order, times, news
        self._longest, self._told, self._copies = longest, told, copies
        self._measure = measure or GroupCosts(parts, group, self._lane, longest).measured
        self._split = len(parts.front.blocks)
        means = found.means
        group.means = None if means is None else means[self._split :].contiguous()
        own = None if means is None else means[: self._split]
        held_bytes = parts.front.loaded_bytes
        self._front = PrunedStacks(parts.front, checkpoint, held_bytes // 3, own, held_bytes)
        self._known: _Known | None = None
        self._in_use: WeakValueDictionary[tuple[GroupLife, HeadSets], PrunedLayers] = WeakValueDictionary()
        """What answers under way have, by the life in which they began: a later one goes on with the same sets."""

    def needs(self, rows: int) -> bool:
        """See ``Pruner.needs``; nothing does before its life of the group is measured."""
        known = self._here
        return known is not None and known.costs.seconds(rows, 1.0) > self.limit_s

    @property
    def words(self) -> str:
        """What is done about the limit now, for people; "" where there is no life."""
        known, life = self._here, self._group.life
        if life is None:
            return ""
        if known is None:
            return NOT_MEASURED if life.narrows else NO_NARROW
        return known.plan.words(self.limit_s, self._longest)

    @property
    def _here(self) -> _Known | None:
        """What is known of the life that there is."""
        known = self._known
        return known if known is not None and known.life is self._group.life else None

    def prune(self, ids: Sequence[int], tenant: str) -> PrunedLayers:
        """See ``Pruner.prune``."""
        known = self._known
        assert known is not None
        level = known.plan.within(len(ids), self.limit_s)
        found = self._in_use.get((known.life, level.sets))
        if found is None:
            others = sum(work_share(sets) for _, sets in list(self._in_use))
            if others and others + work_share(level.sets) > min(MOST_IN_USE, known.copies):
                raise NoRoomForSets("answers under way leave other heads out, and members have no room for more copies")
            found = self._layers(level.sets, Placing(known.life, level.places))
            self._in_use[known.life, level.sets] = found
        return found

    def tidy(self) -> None:
        """Nothing is learned of texts."""

    async def run(self) -> None:
        """Measure each life of the group, until it is cancelled."""
        while True:
            life = self._group.life
            if life is not None and life.narrows and (self._known is None or self._known.life is not life):
                try:
                    await self._know(life)
                except SessionFailed as failure:
                    log.warning("what prompts take is not measured: no head is left out", why=str(failure))
                    with suppress(asyncio.TimeoutError):
                        await within(self._news(), AGAIN_S)
                    continue
                if self._group.life is not life:
                    continue
            await self._news()

    async def _know(self, life: GroupLife) -> None:
        """Nothing is known where the life ends meanwhile."""
        spec, began = self._spec, perf_counter()
        none = (KeptHeads((), spec.num_heads, spec.heads_per_group),) * spec.num_layers
        costs = await self._measure(life, await self._lane.submit(lambda: self._layers(none)))
        times = self._times()
        if costs is None or times is None or self._group.life is not life:
            return
        levels = levels_in_group(self._order, times, self._split, spec.num_heads, spec.heads_per_group)
        self._known = _Known(life, costs, PruningPlan(levels, costs), self._copies())
        self._told()
        log.info("what prompts take is measured", seconds=round(perf_counter() - began, 1), rows=costs.rows, lossy=True)

    def _layers(self, sets: HeadSets, placing: Placing | None = None) -> PrunedLayers:
        front = self._front.with_heads(sets[: self._split])
        return PrunedLayers(sets, front, None, self._parts.back, sets[self._split :], placing)
