"""The portal's care for its group: members gather, a plan is made, the group lives, loses or gains members, and is
planned anew for those who are there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Final, Literal

import msgspec
import structlog
import torch

from device_agent.group.asking.submodel import GroupSubmodel
from device_agent.group.formation.company import Company
from device_agent.group.formation.joining import LOADED_WITHIN_S
from device_agent.group.formation.making import Ahead, PlanMaker, Planned, Planner
from device_agent.group.formation.measures import Measures
from device_agent.group.formation.posted import NotFormed
from device_agent.group.formation.roll import Roll
from device_agent.group.holding.kept_layers import KeptLayers
from device_agent.group.lives.living import AGAIN_S, Living
from device_agent.group.lives.state import Doing, GroupState, MemberState, working
from device_agent.group.lives.watch import Expects, Reads, Watch
from device_agent.group.messages.notes import StepsDone
from device_agent.group.rows.sending import PORTAL
from device_agent.planning.memory import portal_bytes
from device_agent.planning.plan import GroupPlan
from device_agent.planning.profile import DeviceProfile, Profile
from device_agent.planning.shape import ModelShape
from device_agent.planning.transfers import transfer_words
from device_agent.planning.trials import Trial
from device_agent.profiling.kept_profiles import kept_or_measured
from peers.board import PeerLost
from peers.reader import SILENT_S
from peers.rendezvous import listening
from split_model.checkpoint import Checkpoint
from split_model.hub import identity
from split_model.load_apart import load_apart
from tls.contexts import Tls

ALONE_WITHIN_S: Final = 30.0
"""Requests wait so long for members without whom there is no plan; then they are refused until there is one again."""

SPARE: Final = "the group is as fast without it"
"""What is said of a member that has nothing to do; who has, and how much faster that is, the group's ``why`` says."""

_LOOK_EVERY_S: Final = 0.05

log = structlog.get_logger()


class GroupEnded(RuntimeError):
    """The group cannot go on; the message says why, and who."""


@dataclass
class GroupHost:
    """Keeps one group going; ``run`` does it.

    Attributes:
        checkpoint: the portal's; all members must have the same.
        submodel: what sessions are opened on.
        planner: plans for those who are there, whenever that changes.
        wanted: how many members, the portal among them where it computes; or exactly these names.
        first_layer: of the model, the first that the group computes.
        key: what all members prove to know.
        tls: of all links between them, with a certificate that each must have too; None: they are plain.
        address, port: where they join; ``port`` 0: any that is free.
        positions: see ``JoinedPlan``.
        join_within_s: time for all members to come at first; then the group goes on with those who are there.
        budget: bytes that the portal's own part may use, see ``Part``.
        device: where that is computed.
        name: the portal's own, in plans.
        computes: whether the portal computes a part, where ``wanted`` is a number.
        group: its name, for those who ask.
        measured: whether devices and links are measured before they are planned with; else the planner gets None.
        profile: what was measured beforehand, which is not measured again.
        ahead: see ``Ahead``; None: plans are made when they are needed.
        expects: see ``Watch``; None: no member is found to be slow.
        reads: see ``Watch``.
        remark: what the planner has to say of its last plan.
        trial: what is to be tried of that plan; None: nothing.
        silent_s: a member from which the portal hears nothing for so long is lost.
        listens: done once members can join, with the port.
        formed: set while the group lives.
    """

    checkpoint: Checkpoint
    submodel: GroupSubmodel
    planner: Planner
    wanted: int | Sequence[str]
    first_layer: int
    dtype: Literal["float32", "bfloat16", "float16"]
    key: str = field(repr=False)
    tls: Tls | None = None
    address: str = "127.0.0.1"
    port: int = 0
    positions: int = 0
    join_within_s: float = LOADED_WITHIN_S
    budget: int = 0
    device: torch.device | str = "cpu"
    name: str = "portal"
    computes: bool = True
    group: str = ""
    measured: bool = False
    profile: Profile | None = None
    ahead: Ahead | None = None
    expects: Expects | None = None
    reads: Reads = tuple
    remark: Callable[[], str] = str
    trial: Callable[[], Trial | None] = lambda: None
    silent_s: float = SILENT_S
    listens: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    formed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Raises ``ValueError`` where nobody is wanted, or somebody twice, or the profile is of another model."""
        digest = identity(self.checkpoint)
        self._measures = Measures(digest, self.dtype) if self.measured else None
        if self._measures is not None and self.profile is not None:
            self._measures.take(self.profile)
        self._maker = PlanMaker(
            self.checkpoint,
            self.planner,
            self.dtype,
            self.first_layer,
            self.positions,
            self.name,
            self._measures,
            self.ahead,
            self.trial,
        )
        self._roll = Roll(self.wanted, self.name, self.computes)
        self._planned: Planned | None = None
        self._doing: Doing = "joining"
        self._why = ""
        self._company: Company | None = None
        self._living: Living | None = None
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Until it is cancelled, or nobody is there who could begin: then ``GroupEnded`` says why.

        Also raises ``ValueError`` and ``OSError`` as ``listening`` does.
        """
        why = "the portal has stopped"
        try:
            async with listening(self.address, self.port, self.key, distinct=True, tls=self.tls) as rendezvous:
                self.listens.set_result(rendezvous.port)
                digest = identity(self.checkpoint)
                company = self._company = Company(rendezvous, self._roll, digest, self.dtype, self._measures)
                await self._gather(company)
                living = self._living = self._lives(company)
                following: Planned | None = None
                while True:
                    self._planned = following or await self._next_plan(company, living)
                    following = await living.live(self._planned)
        except GroupEnded as ended:
            why = str(ended)
            raise
        finally:
            self.submodel.end(why)
            self._say("joining", why)
            if self._living is not None:
                await self._living.close()

    async def news(self) -> None:
        """Wait until ``state`` may have changed."""
        await self._news.wait()

    def state(self) -> GroupState:
        """Of the group and all members now."""
        here = [] if self._company is None else self._company.here
        names = list(dict.fromkeys([*self._roll.names, *here]))
        plan = None if self._planned is None else self._planned.plan
        moves = "" if plan is None else transfer_words(plan.plan(self.checkpoint.spec))
        tried = "" if self._living is None or self._living.tried is None else str(self._living.tried)
        return GroupState(
            self.group,
            plan.mode if plan else "",
            0 if self._company is None else self._company.epoch,
            self.formed.is_set(),
            tuple(self._state_of(name, name == self.name or name in here) for name in names),
            self._why or "; ".join(filter(None, [self.remark(), tried, moves])),
        )

    @property
    def plan(self) -> GroupPlan | None:
        """Of the life that there is; None where there is none."""
        planned = self._planned if self.formed.is_set() else None
        return None if planned is None else planned.plan.plan(self.checkpoint.spec)

    def _state_of(self, name: str, here: bool) -> MemberState:
        planned, spec = self._planned, self.checkpoint.spec
        if planned is not None and name in planned.names and self._doing != "joining":
            plan = planned.plan
            if self._doing != "working":
                return MemberState(name, self._doing)
            if name in plan.names:
                place, made = plan.names.index(name), plan.plan(spec)
                told = self._told(name)
                state = working(name, made, plan.first_layer, place, spec, plan.dtype, plan.positions, told.relief)
                why = self._roll.why(name)  # Where there is no plan without a slow one.
                hidden = round(max(0.0, 1 - told.waited_s / told.reading_s), 4) if told.reading_s else None
                return replace(state, why=why, hidden=hidden, step_ms=told.step_ms)
            if here:
                return MemberState(name, "spare", why=SPARE)
        if self._company is not None and name in self._company.measuring:
            return MemberState(name, "measuring")
        doing, why = self._roll.state(name, here, monotonic())
        return MemberState(name, doing, why=why)

    def _told(self, name: str) -> StepsDone:
        """What a member has told of its steps in this epoch."""
        assert self._company is not None and self._living is not None
        epoch, done = self._company.epoch, self._company.done.get(name)
        if name == self.name:
            pace = self._living.pace
            return StepsDone(epoch, *pace.done, pace.loads.reading_s, pace.loads.waited_s, pace.relief)
        return done if done is not None and done.epoch == epoch else StepsDone(epoch, 0, 0.0)

    def _say(self, doing: Doing, why: str = "") -> None:
        self._doing, self._why = doing, why
        self.renew()

    def renew(self) -> None:
        """Something is different that is told with ``state``."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _gather(self, company: Company) -> None:
        """Wait for as many as are wanted. Raises ``GroupEnded`` where nobody has come in time."""
        deadline = monotonic() + self.join_within_s
        if self._measures is not None and not self._measures.knows(self.name):
            self._say("measuring")
            self._measures.device(await asyncio.to_thread(load_apart, self._measure_portal))
        while len(there := company.taking_part()) < self._roll.count:
            self._say("joining", f"{len(there)} of {self._roll.count} members are there")
            if monotonic() > deadline:
                if not there:
                    raise GroupEnded(f"no member has come within {self.join_within_s:g} s")
                log.warning("fewer members have come than are wanted", wanted=self._roll.count, there=list(there))
                return
            await company.changed(deadline - monotonic() + _LOOK_EVERY_S)

    def _measure_portal(self) -> DeviceProfile:
        """Plans count the portal's ends. Of what is free they are gone already, and on a GPU they never are."""
        device = self.device
        found = kept_or_measured(self.checkpoint, self.dtype, self.name, self.budget, quick=True, device=device)
        if self.budget and torch.device(device).type == "cpu":
            return found
        ends = portal_bytes(ModelShape.of(self.checkpoint.spec, self.dtype))
        return msgspec.structs.replace(found, memory_bytes=found.memory_bytes + ends)

    def _lives(self, company: Company) -> Living:
        watch = None if self.expects is None else Watch(self._roll, company, self.name, self.expects, self.reads)
        return Living(
            self.checkpoint,
            self.submodel,
            self._maker,
            company,
            self._roll,
            KeptLayers(self.device),
            self.budget,
            self.silent_s,
            self.name,
            self.formed,
            watch,
            self._say,
            self._is_planned,
        )

    def _is_planned(self, planned: Planned) -> None:
        self._planned = planned

    async def _next_plan(self, company: Company, living: Living) -> Planned:
        """For those who are there, once there is one. Raises ``GroupEnded`` where there is none, and never was."""
        deadline, self._planned = monotonic() + ALONE_WITHIN_S, None
        while True:
            await company.freed()
            names, why = company.taking_part(), self._why or "no member is there"
            try:
                if names and self._maker.lacks_links(names):
                    self._say("measuring")
                    await self._maker.measure_links(company, names)
                    continue
                if names:
                    return await self._maker.plan(names, fewer=living.ever)
            except (PeerLost, NotFormed) as error:
                gone = company.blame(str(error))
                log.error("links are not measured", why=str(error), gone=gone)
                if isinstance(error, NotFormed) and PORTAL in error.ranks:
                    await asyncio.sleep(AGAIN_S)
                if living.ever and monotonic() > deadline:
                    self.submodel.end(f"links are not measured: {error}")
                continue
            except Exception as error:  # Of what members say plans are made, and requests wait for one.
                if not isinstance(error, ValueError):
                    log.exception("there is no plan", members=list(names))
                why = f"there is no plan for {', '.join(names)}: {str(error) or type(error).__name__}"
                log.error("no plan", members=list(names), why=str(error))
            if not living.ever:
                raise GroupEnded(why)
            if monotonic() > deadline:
                self.submodel.end(why)
            self._say("joining", why)
            await company.changed(max(1.0, deadline - monotonic()))
