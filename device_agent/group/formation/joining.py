"""What the members of a group tell each other before the first step: who fits, who has loaded, who refuses and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch

from device_agent.group.holding.halves import readers_of
from device_agent.group.holding.held import HeldLayer
from device_agent.group.holding.kept_layers import KeptLayers
from device_agent.group.holding.narrowing import Narrowing, can_narrow
from device_agent.group.holding.pieces import cache_bytes, weight_bytes
from device_agent.group.holding.streaming import Streaming
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.group.relief.lodging import RowSizes
from device_agent.group.relief.moving import ends_of
from device_agent.group.relief.relieving import Relieving, later
from device_agent.group.steps.handing import Handing, can_hand
from device_agent.group.steps.pace import Pace, PacedWorker
from device_agent.group.steps.pipeline import Pipeline
from device_agent.planning.plan import Layer
from device_agent.planning.shape import ModelShape
from peers.collectives import Collectives
from peers.device_collectives import DeviceCollectives
from peers.fabric import Fabric
from split_model.checkpoint import Checkpoint
from split_model.free_memory import free_bytes
from split_model.hub import identity
from split_model.slices import DTYPE_BYTES
from wire.errors import Code

FITS: Final = "fits/"
"""What a member posts, with its rank, once it has found that it can do its part; else it leaves, and says why."""

LOAD: Final = "load"
"""What the portal posts once all fit: nobody reads a weight before."""

LOADED: Final = "loaded/"
"""What a member posts, with its rank, once it has its layers."""

ALL_LOADED: Final = "all loaded"
"""What the portal posts then: now they reach for each other."""

NOT_THERE: Final = "weights that are read at each use and sessions that are counted are for CPUs: say --device cpu"
"""Of a plan's part that no other device than a CPU can have: LIME's."""

LOADED_WITHIN_S: Final = 900.0
"""A member that has not loaded by then hangs."""


class Refused(ValueError):
    """This member cannot do its part; nothing has been loaded. ``code``: what of."""

    def __init__(self, code: Code, why: str) -> None:
        super().__init__(why)
        self.code = code


class Part:
    """One member's part of a plan.

    Args:
        budget: bytes that it may use; 0: what the system says is free.
        kept: what it has of an earlier plan, and of this one from now on; it says on which device.

    Raises:
        Refused: the checkpoint is another one, the plan is not for this model, or the memory is too little.
    """

    def __init__(
        self, plan: JoinedPlan, checkpoint: Checkpoint, rank: int, budget: int = 0, kept: KeptLayers | None = None
    ) -> None:
        spec = checkpoint.spec
        check_digest(plan.digest, checkpoint)
        if rank not in plan.ranks:
            raise Refused(Code.MODEL_MISMATCH, f"the plan has no part for rank {rank}")
        try:
            self.group_plan = plan.plan(spec)
        except ValueError as error:
            raise Refused(Code.MODEL_MISMATCH, f"the plan is not for this model: {error}") from error
        self.layers: tuple[Layer, ...] = self.group_plan.layers
        self.place = plan.ranks.index(rank)
        self._plan, self._checkpoint = plan, checkpoint
        try:
            self.streaming = Streaming.of(self.group_plan, plan.first_layer, self.place, spec, plan.dtype)
        except ValueError as error:
            raise Refused(Code.MODEL_MISMATCH, f"the plan cannot be carried out here: {error}") from error
        self.kept = kept or KeptLayers()
        if self.kept.device.type != "cpu" and (self.streaming.buffer_bytes or self.group_plan.cache_bytes):
            raise Refused(Code.MODEL_MISMATCH, NOT_THERE)
        needed = weight_bytes(self.layers, plan.first_layer, self.place, spec, plan.dtype)
        needed += self.streaming.buffer_bytes - self.streaming.spared_bytes
        # Where more is streamed as keys and values grow, what they may take was found when it was planned.
        if not self.group_plan.cache_bytes:
            needed += cache_bytes(self.layers, self.place, spec, plan.positions, DTYPE_BYTES[plan.dtype])
        free = budget or free_bytes(self.kept.device)
        if not budget:
            free += self.kept.loaded_bytes(plan.digest, plan.dtype) + self.kept.handed.nbytes
        if needed > free:
            raise Refused(
                Code.TOO_LITTLE_MEMORY, f"{needed / 1e6:.1f} MB are needed for its part, and it has {free / 1e6:.1f}"
            )
        self._spare_bytes = free - needed

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and rows."""
        dtype: torch.dtype = getattr(torch, self._plan.dtype)
        return dtype

    def load(self, check: Callable[[], object] = lambda: None) -> list[HeldLayer]:
        """Read what the member has of the group's layers, and nothing else. What it has already it keeps. ``check``:
        see ``KeptLayers.load``.

        Raises ``BadCheckpoint``, ``MemoryError``, and ``OffloadError``, also where the disk has no room for what it may
        come to stream: members are promised that it can."""
        plan, model = self._plan, self._checkpoint
        of = plan.digest, plan.dtype, self.layers, plan.first_layer, self.place
        try:
            held = self.kept.load(model, *of, check, self.streaming)
            if self.group_plan.cache_bytes and self.kept.loader is not None:
                self.kept.loader.check_room(
                    later(self.group_plan, plan.first_layer, self.place, model.spec, plan.dtype)
                )
            return held
        except torch.OutOfMemoryError as error:
            raise MemoryError(f"its part does not fit on {self.kept.device}") from error

    def worker(self, held: list[HeldLayer], fabric: Fabric, pace: Pace | None = None) -> PacedWorker:
        """What runs the steps, and keeps the pace."""
        ranks, device = self._plan.ranks, self.kept.device
        kind = Collectives if device.type == "cpu" else DeviceCollectives
        collectives = kind(fabric, ranks, self._plan.one_shot_bytes)
        pipeline = Pipeline.of(self.group_plan, readers_of(self._checkpoint.spec))
        place, streams = self.place, (self.streaming, self.kept.loader)
        relieving = self._relieving(collectives, fabric)
        spec, more = self._checkpoint.spec, (*streams, relieving)
        narrows = can_narrow(self.group_plan, spec)
        about = self._plan.first_layer, held, place, self._spare_bytes
        narrowing = Narrowing(self._checkpoint, *about) if narrows else None
        handing: Handing | None = None
        if can_hand(self.group_plan, spec):
            handing = Handing(spec, self._plan, place, collectives, self.dtype, device, self.kept.handed)
        beside = narrowing, handing, device
        worker = PacedWorker(spec, held, self.dtype, collectives, ranks, place, pipeline, *more, *beside)
        worker.begin(pace or Pace())
        return worker

    def _relieving(self, collectives: Collectives, fabric: Fabric) -> Relieving | None:
        """Where this member's sessions are counted, what it streams besides, and what of them lies elsewhere."""
        plan, spec, group = self._plan, self._checkpoint.spec, self.group_plan
        if not group.cache_bytes:
            return None
        of = group, plan.first_layer, self.place, spec, plan.dtype
        sizes = RowSizes(spec.num_heads, spec.num_kv_heads, spec.head_dim, self.dtype)
        shape = replace(ModelShape.of(spec, plan.dtype), layers=len(group.layers))
        ends = ends_of(group, self.place, plan.ranks, shape, sizes, collectives, fabric.lose)

        def check() -> None:
            if fabric.failure is not None:
                raise fabric.failure

        found = Relieving(*of, self.kept, *ends, check)
        found.begin()
        return found


def check_digest(wanted: str, checkpoint: Checkpoint) -> None:
    """Raises ``Refused`` where a checkpoint is not the portal's; "": any may be."""
    if wanted and wanted != identity(checkpoint):
        raise Refused(
            Code.DIGEST_MISMATCH, "its weights are not the portal's: use the same revision of the checkpoint on both"
        )
