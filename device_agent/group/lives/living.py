"""The lives of a group, one after the other, as its host has them: each is formed, works, and is lost or ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Final

import structlog

from device_agent.group.asking.life import GroupLife
from device_agent.group.asking.reached import Resumes
from device_agent.group.asking.submodel import GroupSubmodel
from device_agent.group.formation.company import Company
from device_agent.group.formation.forming import form
from device_agent.group.formation.making import PlanMaker, Planned
from device_agent.group.formation.posted import NotFormed
from device_agent.group.formation.roll import Roll
from device_agent.group.formation.trying import settle
from device_agent.group.holding.kept_layers import KeptLayers
from device_agent.group.lives.lateness import PERIOD_S
from device_agent.group.lives.state import Doing
from device_agent.group.lives.watch import Watch
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.group.rows.sending import PORTAL
from device_agent.group.steps.pace import Pace
from device_agent.profiling.tried import Tried
from device_agent.sharing.compute import tell
from peers.board import PeerLost
from peers.group import Group
from split_model.checkpoint import Checkpoint

GOOD_MOMENT_S: Final = 5.0
"""A member who has come waits so long for a moment in which nobody waits for an answer."""

AGAIN_S: Final = 1.0
"""Where the portal itself has no network it looks so often whether it has one again."""

FORMED_WITHIN_S: Final = 120.0
"""Requests wait for the next life while several fail to begin, or one takes long, and not for ever: so long behind the
last that worked they are refused, until one has begun."""

_LOOK_EVERY_S: Final = 0.05
_LONG_S: Final = 60.0

log = structlog.get_logger()


@dataclass
class Living:
    """Attributes are those of ``GroupHost``, and:

    kept: the portal's own layers.
    watch: who looks at the pace; None: nobody does.
    say: told what the group does now, and why.
    planned: told where a plan that holds already is one for other members: one that has nothing to do came or went.
    ever: whether it has ever been formed.
    pace: of the portal's own part, in the life that there is.
    tried: how the plan of that life is run, where there was something to try.
    """

    checkpoint: Checkpoint
    submodel: GroupSubmodel
    maker: PlanMaker
    company: Company
    roll: Roll
    kept: KeptLayers
    budget: int
    silent_s: float
    name: str
    formed: asyncio.Event
    watch: Watch | None
    say: Callable[[Doing, str], None]
    planned: Callable[[Planned], None]
    ever: bool = False
    pace: Pace = field(default_factory=Pace)
    tried: Tried | None = None
    _handed: tuple[JoinedPlan, Resumes] | None = None
    """What the last life has handed over, and to whom."""
    _worked_at: float | None = None
    """When the last life that had begun ended."""

    async def close(self) -> None:
        """Forget the portal's own layers; no life is there."""
        await _to_the_end(self.kept.close)

    async def live(self, planned: Planned) -> Planned | None:
        """One life, from the plan to its end. Returns the next plan, where that was made meanwhile."""
        plan, address = planned.plan, self.company.rendezvous.address
        handed, self._handed = self._handed, None
        pace = self.pace = Pace()
        self.say("loading", "")
        await self.company.freed()
        try:
            group = self.company.open({rank: plan.written() for rank in plan.seats}, plan.seats)
        except NotFormed as error:
            log.warning("the group has not begun", why=str(error))
            return None
        life: GroupLife | None = None
        why, following, hands = "the portal has stopped", None, False
        try:
            life = await self._formed(group, plan, address, pace)
            if self.watch is not None:
                self.watch.begin(plan.names, pace)
            if handed is not None and handed[0] == plan:
                life.resumes = handed[1]
            following = await self._work(group, planned, life)
            why = "the group is planned anew"
            if following is not None:
                hands = await self._hands_over(plan, following.plan)
        except NotFormed as error:
            if error.refused and self.ever:  # What it lacks now it may have later, and nobody comes again to say so.
                self.roll.failed(self.name, str(error), monotonic())
            elif error.refused:
                self.roll.refuses(self.name, str(error))
            self._lost(group, plan, str(error), max(error.ranks))
            if not error.refused and PORTAL in error.ranks:
                await asyncio.sleep(AGAIN_S)
        except PeerLost as error:
            self._lost(group, plan, str(error), error.rank or 0)
        finally:
            self.formed.clear()
            if life is not None:
                to = following.plan if following is not None and hands else None
                await _to_the_end(partial(life.end, to))
                self._has_handed(plan, to, life.handed)
            self.submodel.pause()
            group.end(why)
        return following

    async def _formed(self, group: Group, plan: JoinedPlan, address: str, pace: Pace) -> GroupLife:
        """Raises as ``form`` does, and ``NotFormed`` for whatever else: the portal outlives it. Where it takes long
        requests are refused meanwhile."""
        late: asyncio.TimerHandle | None = None
        if self._worked_at is not None:
            left_s, why = self._worked_at + FORMED_WITHIN_S - monotonic(), "the group takes long to begin again"
            late = asyncio.get_running_loop().call_later(max(0.0, left_s), self.submodel.end, why)
        try:
            return await form(group, plan, self.checkpoint, self.kept, address, self.budget, self.silent_s, pace)
        except (NotFormed, PeerLost):
            raise
        except Exception as error:  # Members may bring it about, and requests wait for the next life.
            log.exception("the group has not begun")
            raise NotFormed(f"the portal cannot begin: {type(error).__name__}: {error}", (PORTAL,)) from error
        finally:
            if late is not None:
                late.cancel()

    async def _hands_over(self, plan: JoinedPlan, following: JoinedPlan) -> bool:
        """See ``PlanMaker.hands_over``; where it cannot be told sessions are replayed."""
        try:
            return await asyncio.to_thread(self.maker.hands_over, plan, following, self.submodel.lengths)
        except Exception:  # It is told from what members say.
            log.exception("it cannot be told whether sessions had better be handed over")
            return False

    def _has_handed(self, plan: JoinedPlan, to: JoinedPlan | None, sessions: Mapping[int, int]) -> None:
        """By a plan, to the life of the next one."""
        if to is not None and sessions:
            lie_so = set(to.names) <= set(plan.names)
            self._handed = to, Resumes(sessions, None if lie_so else plan)
            log.info("sessions are handed over", sessions=len(sessions), positions=sum(sessions.values()))

    def _lost(self, group: Group, plan: JoinedPlan, why: str, rank: int) -> None:
        if self.submodel.connected:  # Of a life that has never begun nobody's rows are the reason.
            self.submodel.lost(why)
        if self._worked_at is not None and monotonic() - self._worked_at > FORMED_WITHIN_S:
            self.submodel.end(why)
        group.end(why, rank)
        gone = self.company.blame(why)
        log.error("the group is lost", why=why, gone=gone, mode=plan.mode)
        self.say("joining", why)

    async def _work(self, group: Group, planned: Planned, life: GroupLife) -> Planned | None:
        """From the first step to the last. Returns where it had better be planned anew, with the plan where that is
        made; raises ``PeerLost``."""
        loop, changed = asyncio.get_running_loop(), self.company.rendezvous.changed
        over: asyncio.Future[PeerLost] = loop.create_future()
        life.start(lambda why, rank: tell(loop, over.set_result, PeerLost(why, rank)))
        ends: list[asyncio.Future[Any]] = [over, group.ended]
        for end in ends:
            end.add_done_callback(lambda _: changed.set())
        await self._settle(planned, life, ends)
        self.submodel.begin(life)
        self.formed.set()
        self.ever = True
        self.say("working", "")
        log.info("the group works", mode=planned.plan.mode, members=list(planned.plan.names), epoch=group.epoch)
        preparing = asyncio.create_task(self._prepare(planned.names))
        try:
            following = await self._until_over(group, planned, life, ends)
        finally:
            self._worked_at = monotonic()
            preparing.cancel()
            await asyncio.gather(preparing, return_exceptions=True)
        if over.done() and over.result().rank == PORTAL and len(planned.names) > 1:
            self.roll.failed(self.name, str(over.result()), monotonic())  # Its own part: others can do without.
        if following is None and any(end.done() for end in ends):
            raise over.result() if over.done() else PeerLost(group.ended.result(), group.blamed)
        return following

    async def _settle(self, planned: Planned, life: GroupLife, ends: list[asyncio.Future[Any]]) -> None:
        """In the best manner, but where answers wait."""
        self.tried = None
        if planned.trial is None or self.submodel.busy:
            return
        settling = asyncio.create_task(settle(life, planned.plan, planned.trial, self.submodel.hidden_size))
        await asyncio.wait([settling, *ends], return_when=asyncio.FIRST_COMPLETED)
        if settling.done():
            self.tried = settling.result()
        settling.cancel()

    async def _prepare(self, names: tuple[str, ...]) -> None:
        """Have the plans made that are needed next where one of these is lost: answers would wait for them."""
        for name in names:
            if name != self.name:
                await self.maker.prepare(self.company.without(name, names))

    async def _until_over(
        self, group: Group, planned: Planned, life: GroupLife, ends: list[asyncio.Future[Any]]
    ) -> Planned | None:
        """Until one of ``ends`` is done, or it had better be planned anew: see ``_work``."""
        hopeless: frozenset[str] = frozenset()
        looked_at = monotonic()
        told: object = None
        while not any(end.done() for end in ends):
            if self.watch is not None and monotonic() - looked_at >= PERIOD_S:
                looked_at = monotonic()
                await self.watch.look(life, group.epoch)
            names = self.company.taking_part(planned.names)
            known = names, self.company.here, self.company.measuring
            if known != told:
                told = known
                self.say("working", "")
            if names and set(names) != set(planned.names) and set(names) != hopeless:
                try:
                    following = await self._following(names)
                except Exception as error:  # Of what members say plans are made.
                    why = str(error) or type(error).__name__
                    log.warning("the group goes on as it is", there=list(names), why=why)
                    hopeless = frozenset(names)
                    continue
                if following is not None and set(following.names) < set(names):
                    hopeless = frozenset(names)  # As they are: those who are left out have not the memory.
                if following is not None and following.plan == planned.plan:
                    planned = following
                    self.planned(planned)
                    continue
                if await self._good_moment(set(planned.names) <= set(names), ends):
                    log.info("the group is planned anew", members=list(names), before=list(planned.names))
                    return following
            await self.company.changed(_LONG_S if self.watch is None else PERIOD_S)
        return None

    async def _following(self, names: tuple[str, ...]) -> Planned | None:
        """A plan for these members, or those who have the memory, made while the group works; None: links have to be
        measured before. Raises ``ValueError`` where there is none."""
        return None if self.maker.lacks_links(names) else await self.maker.plan(names, fewer=True)

    async def _good_moment(self, wait: bool, ends: list[asyncio.Future[Any]]) -> bool:
        """Return when the life may end, if there is time to ``wait``; False where it has ended by itself."""
        deadline = monotonic() + (GOOD_MOMENT_S if wait else 0.0)
        while self.submodel.busy and monotonic() < deadline and not any(end.done() for end in ends):
            await asyncio.wait(ends, timeout=_LOOK_EVERY_S)
        return not any(end.done() for end in ends)


async def _to_the_end(call: Callable[[], None]) -> None:
    """Wait for what blocks for a while, also where nobody wants to wait any more."""
    ending = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        await ending
        raise
