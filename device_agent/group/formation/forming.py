"""How the portal forms one life of its group: all fit, all load, all reach for each other."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from device_agent.group.asking.life import GroupLife
from device_agent.group.formation.joining import ALL_LOADED, LOAD, Part
from device_agent.group.formation.loading import all_fit, all_loaded
from device_agent.group.formation.posted import NotFormed
from device_agent.group.holding.halves import readers_of
from device_agent.group.holding.kept_layers import KeptLayers
from device_agent.group.holding.narrowing import can_narrow
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.group.rows.sending import PORTAL
from device_agent.group.steps.pace import Pace
from device_agent.group.steps.pipeline import Pipeline
from device_agent.planning.shape import ModelShape
from device_agent.planning.thresholds import easy_tokens, most_tokens
from peers.fabric import Fabric
from peers.group import Group
from split_model.checkpoint import Checkpoint
from split_model.errors import ModelError


async def form(
    group: Group,
    plan: JoinedPlan,
    checkpoint: Checkpoint,
    kept: KeptLayers,
    address: str,
    budget: int,
    silent_s: float,
    pace: Pace,
) -> GroupLife:
    """A life that has not been started.

    Args:
        group: open, for the plan's seats.
        kept: the portal's own layers.
        address: the portal's, as members reach it.
        budget: bytes for the portal's own part, see ``Part``.
        silent_s: see ``PeerLink``.
        pace: of the portal's own part.

    Raises:
        NotFormed: a member has not come in time, or the portal itself cannot do its part.
        PeerLost: a member is gone, or has refused.
    """
    part: Part | None = None
    if PORTAL in plan.ranks:
        try:
            part = await asyncio.to_thread(Part, plan, checkpoint, PORTAL, budget, kept)
        except ValueError as error:
            raise NotFormed(f"the portal cannot take part: {error}", (PORTAL,), refused=True) from error
    await all_fit(group, plan.seats)
    group.board.post(LOAD, b"")
    try:
        held = await asyncio.to_thread(part.load, lambda: group.board.has(())) if part is not None else []
    except (ModelError, MemoryError) as error:
        raise NotFormed(f"the portal cannot load its part: {error}", (PORTAL,), refused=True) from error
    await all_loaded(group, plan.seats)
    group.board.post(ALL_LOADED, b"")
    try:
        fabric = await asyncio.to_thread(
            Fabric.open, group.board, PORTAL, group.size, address, epoch=group.epoch, silent_s=silent_s
        )
    except OSError as error:
        raise unreachable(address, error) from error
    try:
        worker = part.worker(held, fabric, pace) if part is not None else None
    except BaseException:
        fabric.lose("the portal cannot begin")
        raise
    spec = checkpoint.spec
    planned, readers = plan.plan(spec), readers_of(spec)
    shape = replace(ModelShape.of(spec, plan.dtype), layers=len(planned.layers))
    pipeline, room = Pipeline.of(planned, readers), (most_tokens(shape, planned), easy_tokens(shape, planned))
    return GroupLife(fabric, planned.layers, plan.ranks, worker, pipeline, readers, *room, can_narrow(planned, spec))


def unreachable(address: str, error: OSError) -> NotFormed:
    """What the portal says where its own links cannot be opened: its network may be gone, with its address."""
    return NotFormed(f"no member can reach the portal at {address}: {error.strerror or error}", (PORTAL,))
