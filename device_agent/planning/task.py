"""What a plan is asked for, and how good an answer is. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from msgspec import structs

from device_agent.planning.costs import MemberCosts
from device_agent.planning.lan import Lan
from device_agent.planning.memory import DoesNotFit, Held, Lack, held, lacking
from device_agent.planning.plan import GroupPlan
from device_agent.planning.profile import Profile
from device_agent.planning.shape import ModelShape
from device_agent.planning.timeline import ForwardPass, Prediction, play


@dataclass(frozen=True)
class Work:
    """What a group is to be good at.

    Attributes:
        rows: of the prompt, which is one forward.
        new: tokens generated behind it, each a step of one row; 0 for one-shot work.
        wanted: how many of the prompt's last rows the portal needs: 1, or all for an encoder's hidden states.
        sessions: how many generate at once. Each has such a prompt; what a step takes is for a token of each.
        room: positions of a session for whose keys and values there has to be memory, where they are more than these
            rows and tokens: who is to hold fewer refuses its part.
        prunes: whether sessions may leave heads out, which they cannot where rows are shared as by Voltage.
    """

    rows: int
    new: int = 0
    wanted: int = 1
    sessions: int = 1
    room: int = 0
    prunes: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.wanted <= self.rows or self.new < 0:
            raise ValueError(f"{self.wanted} of {self.rows} rows and {self.new} new tokens are no work")
        if self.sessions < 1:
            raise ValueError(f"{self.sessions} sessions are no work")

    @property
    def positions(self) -> int:
        """Of all sessions, room for whose keys and values this needs."""
        return self.sessions * max(self.rows + self.new, self.room) if self.new else 0

    @property
    def prefill(self) -> ForwardPass:
        return ForwardPass(self.rows, 0, self.wanted)

    @property
    def step(self) -> ForwardPass:
        """The step in the middle of what is generated, of all sessions."""
        return ForwardPass(self.sessions, self.rows + self.new // 2, self.sessions)


@dataclass(frozen=True)
class Task:
    """One model, the devices that may share it, and the work.

    Attributes:
        members: names of the devices that may compute, in the order of their ring.
        portal: has tokens and head; need not be a member.

    Raises ValueError where a device was not measured.
    """

    shape: ModelShape
    profile: Profile
    members: tuple[str, ...]
    portal: str
    work: Work
    _costs: dict[tuple[str, ...], tuple[Lan, MemberCosts]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._known(self.members)

    def costs(self, members: tuple[str, ...] | None = None) -> MemberCosts:
        """By the numbers of these members; None: of all."""
        return self._known(members or self.members)[1]

    def forward(self, plan: GroupPlan, forward: ForwardPass) -> Prediction:
        """Any forward, by a plan."""
        return self._play(plan, forward)

    def prefill(self, plan: GroupPlan) -> Prediction:
        return self._play(plan, self.work.prefill)

    def step(self, plan: GroupPlan) -> Prediction:
        return self._play(plan, self.work.step)

    def seconds(self, plan: GroupPlan) -> float:
        """What a plan takes for all the work: the prompt, and each new token."""
        new = self.work.new and self.work.new * self.step(plan).seconds
        return self.prefill(plan).seconds + new

    def uncoded(self) -> Task:
        """The same with all weights on the disks as they are in memory."""
        devices = tuple(structs.replace(device, decoding=None) for device in self.profile.devices)
        return replace(self, profile=structs.replace(self.profile, devices=devices), _costs={})

    def shortened(self, layers: int) -> Task:
        """The same with so few layers; where some attend to an encoder, half of them do."""
        cross = layers // 2 if self.shape.cross_layers else 0
        return replace(self, shape=replace(self.shape, layers=layers, cross_layers=cross))

    def held(self, plan: GroupPlan) -> dict[str, Held]:
        return held(self.shape, plan, self.work.rows, self.work.positions)

    def lacks(self, plan: GroupPlan) -> list[Lack]:
        """Who has too little memory for a plan."""
        return lacking(self.profile, self.held(plan))

    def fitting(self, plan: GroupPlan) -> GroupPlan:
        """The plan itself. Raises DoesNotFit where a device has too little memory, ValueError where it is none."""
        plan.check(self.shape)
        lacks = self.lacks(plan)
        if lacks:
            raise DoesNotFit(plan.mode, lacks)
        return plan

    def _play(self, plan: GroupPlan, forward: ForwardPass) -> Prediction:
        lan, costs = self._known(plan.members)
        return play(self.shape, lan, plan, forward, costs)

    def _known(self, members: tuple[str, ...]) -> tuple[Lan, MemberCosts]:
        if members not in self._costs:
            lan = Lan(self.profile, members, self.portal)
            self._costs[members] = lan, MemberCosts(self.shape, lan)
        return self._costs[members]
