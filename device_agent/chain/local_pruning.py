"""Which heads of a prompt are left out where all layers are on this device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

import structlog

from device_agent.chain.calibrating import calibrated, order_by
from device_agent.chain.model_ends import DeviceParts
from device_agent.chain.pass_costs import Clock, measured_costs
from device_agent.chain.pruning import PrunedLayers
from device_agent.cloud.chunks import DEFAULT_CHUNK
from device_agent.planning.limit import LimitTooShort
from device_agent.planning.pruning import PassCosts, PruningPlan, levels_of
from split_model.checkpoint import Checkpoint
from split_model.hub import identity
from split_model.pruning.kept import HeadSets, KeptHeads
from split_model.pruning.kept_calibration import kept_calibration
from split_model.pruning.orders import MEASURES, PruneBy, by_scores, raw_scores
from split_model.pruning.retrieval import TenantStores
from split_model.pruning.stack import PrunedStacks
from split_model.pruning.watched import Layers
from split_model.stack import Stack

LOOKED_AT = 64
"""Rows at a prompt's beginning that are run with all heads to score them, where scores are the prompt's own."""

Measure = Callable[[Layers, Layers, int, Clock, int], PassCosts]
"""What ``measured_costs`` is."""

log = structlog.get_logger()


class LocalPruner:
    """A ``Pruner`` of layers that are all on this device. Of use once ``prepare`` has run.

    Attributes:
        limit_s: seconds in which a prompt is to be read, ``--t-max``.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        parts: DeviceParts,
        middle: Stack | None,
        limit_s: float,
        longest: int,
        by: PruneBy = "effect",
        clock: Clock = perf_counter,
        chunk: int = 0,
    ) -> None:
        """middle: the layers between those of ``parts``, where there are some. They hold all of the model together.
        longest: positions of one request, 2 or more. chunk: rows of a prompt that are run at once; 0: as usual."""
        self.limit_s, self._longest, self._chunk = limit_s, longest, chunk or DEFAULT_CHUNK
        self._checkpoint, self._by, self._clock = checkpoint, by, clock
        self._all = (parts.front, middle, parts.back)
        held = tuple(stack for stack in self._all if stack is not None and stack.blocks)
        self._layers = Layers(parts.embedding, held, parts.head)
        self._stores = TenantStores()
        self._costs: PassCosts | None = None
        self._plan: PruningPlan | None = None
        self._stacks: list[PrunedStacks] = []

    def prepare(self, measure: Measure = measured_costs) -> None:
        """Calibrate, or read what was kept, and measure what prompts take."""
        spec, checkpoint, began = self._checkpoint.spec, self._checkpoint, self._clock()
        dtype = str(self._layers.stacks[0].dtype)
        make = partial(calibrated, self._layers, spec, self._clock)
        found = kept_calibration(identity(checkpoint), dtype, make)
        begin = 0
        for stack in self._layers.stacks:
            means = found.means[begin : begin + len(stack.blocks)]
            # As much as attention has of a layer, about: the copies of one set of most heads, or of several of fewer.
            kept, in_use = stack.loaded_bytes // 3, stack.loaded_bytes
            self._stacks.append(PrunedStacks(stack, checkpoint, kept, means, in_use))
            begin += len(stack.blocks)
        none = (KeptHeads((), spec.num_heads, spec.heads_per_group),) * spec.num_layers
        bare = Layers(self._layers.embedding, self._with(none), self._layers.head)
        self._costs = measure(self._layers, bare, self._longest, self._clock, self._chunk)
        self._plan = self._planned(order_by(self._by, checkpoint) or found.order)
        log.info("calibrated", seconds=round(self._clock() - began, 1), by=self._by, lossy=True)

    def needs(self, rows: int) -> bool:
        """Whether so many rows of a prompt take longer than the limit with all heads."""
        return self._costs is not None and self.seconds(rows) > self.limit_s

    def seconds(self, rows: int) -> float:
        """What so many rows of a prompt take with all heads, by what was measured."""
        assert self._costs is not None
        return self._costs.seconds(rows, 1.0)

    def prune(self, ids: Sequence[int], tenant: str) -> PrunedLayers:
        """The layers for a prompt that ``needs`` it. Raises LimitTooShort, NoRoomForSets."""
        plan, looked_s = self._plan, 0.0
        assert plan is not None and self._costs is not None
        if self._by in MEASURES:
            looked = ids[:LOOKED_AT]
            plan, looked_s = self._planned(self._scored(looked, tenant)), self.seconds(len(looked))
        try:
            sets = plan.within(len(ids), self.limit_s - looked_s).sets
        except LimitTooShort as error:
            of = f"a prompt of {len(ids)} tokens" + f", scored by its first {LOOKED_AT}," * bool(looked_s)
            raise LimitTooShort(self.limit_s, error.floor_s + looked_s, of) from None
        stacks = iter(self._with(sets))
        front, middle, back = (stack if stack is None or not stack.blocks else next(stacks) for stack in self._all)
        assert front is not None and back is not None
        return PrunedLayers(sets, front, middle, back)

    def tidy(self) -> None:
        """Cluster anew what a tenant's heads looked like, when there is time."""
        self._stores.recluster()

    def _with(self, sets: HeadSets) -> tuple[Stack, ...]:
        begin, found = 0, []
        for stack, pruned in zip(self._layers.stacks, self._stacks, strict=True):
            found.append(pruned.with_heads(sets[begin : begin + len(stack.blocks)]))
            begin += len(stack.blocks)
        return tuple(found)

    def _planned(self, order: Sequence[tuple[int, int]]) -> PruningPlan:
        spec = self._checkpoint.spec
        assert self._costs is not None
        return PruningPlan(levels_of(order, spec.num_layers, spec.num_heads, spec.heads_per_group), self._costs)

    def _scored(self, ids: Sequence[int], tenant: str) -> tuple[tuple[int, int], ...]:
        return by_scores(raw_scores(self._layers, ids, self._stores.of(tenant), MEASURES[self._by]))
