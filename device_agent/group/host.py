"""The portal's care for its group: it is formed, lives, loses a member, and is formed anew of those who are left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Final, Literal

import structlog

from device_agent.group.joined_plan import JoinedPlan
from device_agent.group.joining import ALL_LOADED, FITS, LOAD, LOADED, LOADED_WITHIN_S, REFUSED, Part
from device_agent.group.life import GroupLife
from device_agent.group.submodel import GroupSubmodel
from device_agent.group.worker import PORTAL
from device_agent.planning.plan import GroupPlan
from peers.board import PeerLost
from peers.fabric import Fabric
from peers.rendezvous import Group, Rendezvous, listening
from split_model.checkpoint import Checkpoint
from split_model.errors import ModelError
from split_model.hub import identity

REJOIN_WITHIN_S: Final = 8.0
"""Who was in the group and has not come back so long after its end is planned without."""

_LOOK_EVERY_S: Final = 0.02

PlanFor = Callable[[Sequence[str]], GroupPlan]
"""Names of the members that there are to a plan for the group's layers. Raises ``ValueError`` where there is none."""

log = structlog.get_logger()


class GroupEnded(RuntimeError):
    """The group cannot go on; the message says why, and who."""


class _Lost(Exception):
    """This life of the group is over, or has not begun, because of ``gone``, names of members."""

    def __init__(self, why: str, gone: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.gone = tuple(gone)


@dataclass
class GroupHost:
    """Keeps one group going; ``run`` does it.

    Attributes:
        checkpoint: the portal's; all members must have the same.
        submodel: what sessions are opened on.
        plan_for: what plans, for all members first, then for those who are left.
        members: names of those who shall compute, the portal's own among them or not.
        first_layer: of the model, the first that the group computes.
        key: what all members prove to know.
        address, port: where they join; ``port`` 0: any that is free.
        positions: see ``JoinedPlan``.
        join_within_s: time for all members to come at first.
        budget: bytes that the portal's own part may use, see ``Part``.
        listens: done once members can join, with the port.
        formed: set while the group lives.
    """

    checkpoint: Checkpoint
    submodel: GroupSubmodel
    plan_for: PlanFor
    members: Sequence[str]
    first_layer: int
    dtype: Literal["float32", "bfloat16", "float16"]
    key: str = field(repr=False)
    address: str = "127.0.0.1"
    port: int = 0
    positions: int = 0
    join_within_s: float = LOADED_WITHIN_S
    budget: int = 0
    listens: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    formed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until it is cancelled, or nobody is left who could go on: then ``GroupEnded`` says why.

        Also raises ``ValueError`` and ``OSError`` as ``listening`` does.
        """
        why = "the portal has stopped"
        try:
            async with listening(self.address, self.port, self.key) as rendezvous:
                self.listens.set_result(rendezvous.port)
                await self._live_on(rendezvous)
        except GroupEnded as ended:
            why = str(ended)
            raise
        finally:
            self.submodel.end(why)

    async def _live_on(self, rendezvous: Rendezvous) -> None:
        """One life after the other."""
        members, within_s = list(self.members), self.join_within_s
        for epoch in count(1):
            try:
                plan = JoinedPlan.of(
                    self.plan_for(members), identity(self.checkpoint), self.dtype, self.first_layer, self.positions
                )
                plan.layers(self.checkpoint.spec)
            except ValueError as error:
                raise GroupEnded(f"there is no plan for {', '.join(members)}: {error}") from error
            try:
                await self._live(rendezvous, plan, epoch, within_s)
            except _Lost as lost:
                log.error("the group is lost", why=str(lost), gone=list(lost.gone), mode=plan.mode)
                members = [name for name in members if name not in lost.gone]
                if not members or (not self.formed.is_set() and within_s == self.join_within_s):
                    raise GroupEnded(str(lost)) from lost
                within_s = REJOIN_WITHIN_S
            self.formed.clear()

    async def _live(self, rendezvous: Rendezvous, plan: JoinedPlan, epoch: int, within_s: float) -> None:
        """One life, from the plan to its end. Raises ``_Lost``."""
        group = rendezvous.open(epoch, {rank: plan.written() for rank in plan.seats}, plan.seats)
        life: GroupLife | None = None
        why = "the portal has stopped"
        try:
            life = await self._form(rendezvous, group, plan, within_s)
            over: asyncio.Future[tuple[str, int | None]] = asyncio.get_running_loop().create_future()
            loop = asyncio.get_running_loop()
            life.start(lambda *lost: loop.call_soon_threadsafe(over.set_result, lost))
            self.submodel.begin(life)
            self.formed.set()
            log.info("the group works", mode=plan.mode, members=list(plan.names), epoch=epoch)
            why, rank = await over
            self.submodel.lost(why)
            raise _Lost(why, [plan.names[plan.ranks.index(rank)]] if rank else [])
        except (_Lost, PeerLost) as lost:
            why = str(lost)
            raise lost if isinstance(lost, _Lost) else _Lost(why) from None
        finally:
            if life is not None:
                await asyncio.to_thread(life.end)
            group.end(why)

    async def _form(self, rendezvous: Rendezvous, group: Group, plan: JoinedPlan, within_s: float) -> GroupLife:
        part: Part | None = None
        if PORTAL in plan.ranks:
            try:
                part = await asyncio.to_thread(Part, plan, self.checkpoint, PORTAL, self.budget)
            except ValueError as error:
                raise GroupEnded(f"the portal cannot take part: {error}") from error
        await self._posted(group, plan, FITS, within_s)
        group.board.post(LOAD, b"")
        try:
            held = await asyncio.to_thread(part.load) if part is not None else []
        except ModelError as error:
            raise GroupEnded(f"the portal cannot load its part: {error}") from error
        await self._posted(group, plan, LOADED, LOADED_WITHIN_S)
        group.board.post(ALL_LOADED, b"")
        fabric = await asyncio.to_thread(
            Fabric.open, group.board, PORTAL, group.size, rendezvous.address, epoch=group.epoch
        )
        worker = part.worker(held, fabric) if part is not None else None
        return GroupLife(fabric, plan.layers(self.checkpoint.spec), plan.ranks, worker)

    async def _posted(self, group: Group, plan: JoinedPlan, what: str, within_s: float) -> None:
        """Wait until all have posted it. Raises ``_Lost`` where one refuses, is gone, or does not come in time."""
        deadline = monotonic() + within_s
        board, waiting = group.board, dict(plan.seats)
        while waiting:
            for rank, name in list(waiting.items()):
                if board.has([f"{REFUSED}{rank}"]):
                    raise _Lost(f"{name} refused: {board.get(f'{REFUSED}{rank}', 0).decode()}", [name])
                if board.has([f"{what}{rank}"]):
                    del waiting[rank]
            if waiting and monotonic() > deadline:
                names = [waiting[rank] for rank in waiting if rank in group.missing] or list(waiting.values())
                raise _Lost(f"{', '.join(names)} did not come within {within_s:g} s", names)
            if waiting:
                await asyncio.sleep(_LOOK_EVERY_S)
