"""How the portal forms one life of its group: all fit, all load, all reach for each other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from time import monotonic
from typing import Final

from device_agent.group.asking.life import GroupLife
from device_agent.group.formation.joining import ALL_LOADED, FITS, LOAD, LOADED, LOADED_WITHIN_S, Part
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

_LOOK_EVERY_S: Final = 0.02


class NotFormed(Exception):
    """A life has not begun because of ``ranks``; ``refused``: they cannot do their parts."""

    def __init__(self, why: str, ranks: tuple[int, ...], refused: bool = False) -> None:
        super().__init__(why)
        self.ranks, self.refused = ranks, refused


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
    await posted(group, plan.seats, FITS)
    group.board.post(LOAD, b"")
    try:
        held = await asyncio.to_thread(part.load, lambda: group.board.has(())) if part is not None else []
    except (ModelError, MemoryError) as error:
        raise NotFormed(f"the portal cannot load its part: {error}", (PORTAL,), refused=True) from error
    await posted(group, plan.seats, LOADED)
    group.board.post(ALL_LOADED, b"")
    try:
        fabric = await asyncio.to_thread(
            Fabric.open, group.board, PORTAL, group.size, address, epoch=group.epoch, silent_s=silent_s
        )
    except OSError as error:
        raise unreachable(address, error) from error
    worker = part.worker(held, fabric, pace) if part is not None else None
    spec = checkpoint.spec
    planned, readers = plan.plan(spec), readers_of(spec)
    shape = replace(ModelShape.of(spec, plan.dtype), layers=len(planned.layers))
    pipeline, room = Pipeline.of(planned, readers), (most_tokens(shape, planned), easy_tokens(shape, planned))
    return GroupLife(fabric, planned.layers, plan.ranks, worker, pipeline, readers, *room, can_narrow(planned, spec))


def unreachable(address: str, error: OSError) -> NotFormed:
    """What the portal says where its own links cannot be opened: its network may be gone, with its address."""
    return NotFormed(f"no member can reach the portal at {address}: {error.strerror or error}", (PORTAL,))


async def posted(group: Group, seats: dict[int, str], what: str, within_s: float = LOADED_WITHIN_S) -> None:
    """Wait until the members of all ``seats``, names by rank, have posted it.

    Raises ``NotFormed`` where some have not in time, ``PeerLost`` where one is gone, or has refused.
    """
    deadline = monotonic() + within_s
    while not group.board.has([f"{what}{rank}" for rank in seats]):
        if monotonic() > deadline:
            late = tuple(rank for rank in seats if not group.board.has([f"{what}{rank}"]))
            names = ", ".join(seats[rank] for rank in late)
            raise NotFormed(f"{names} did not come within {within_s:g} s ({what.rstrip('/')})", late)
        await asyncio.sleep(_LOOK_EVERY_S)
