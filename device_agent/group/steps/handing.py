"""Keys and values that go from one life of a group into the next, by ``planning.handover``: sent where the next plan
wants to have them, bit for bit, while no step is under way.

Where nobody is new in the next plan that is the last thing in a life, since who leaves has some; else it is the first
thing in the next life, since who has come gets some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from device_agent.group.holding.handed import HandedOver, HandedSession
from device_agent.group.holding.held import HeldLayer, SessionCaches
from device_agent.group.messages.heads import BadGroupHead, HandHead, ResumeHead
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.group.rows.sending import PORTAL, Tag
from device_agent.group.steps.giving import Giving
from device_agent.planning.handover import can_hand_over
from device_agent.planning.plan import GroupPlan
from peers.collectives import Collectives
from split_model.kv_cache import KVCache
from split_model.spec import ModelSpec


def can_hand(plan: GroupPlan, spec: ModelSpec) -> bool:
    """Whether sessions of a plan can be handed over to the next: not where they are about another text."""
    return spec.attention == "causal" and can_hand_over(plan, plan)


def await_gifts(links: Collectives, ranks: Sequence[int]) -> None:
    """The portal waits until other members have given all. Raises ``PeerLost``, ``EpochOver``."""
    for rank in ranks:
        links.receive(torch.empty(1, dtype=torch.uint8), rank, Tag.GIVEN).wait()


def as_tensor(plan: JoinedPlan) -> torch.Tensor:
    """A written plan, as it is sent."""
    return torch.frombuffer(bytearray(plan.written()), dtype=torch.uint8)


class Handing:
    """Of one member in one life. For the thread of its steps.

    Args:
        plan: of this life.
        place: the member's.
        dtype, device: of keys and values.
        kept: what outlives it.
    """

    def __init__(
        self,
        spec: ModelSpec,
        plan: JoinedPlan,
        place: int,
        links: Collectives,
        dtype: torch.dtype,
        device: torch.device | str,
        kept: HandedOver,
    ) -> None:
        self._spec, self._plan, self._me, self._links = spec, plan, plan.names[place], links
        self._kind = spec.head_dim, dtype, device
        self._epoch = links.epoch
        self._kept, self._had = kept, kept.take(self._epoch)
        self._given: Giving | None = None

    def follow(self, head: HandHead, sessions: Mapping[int, SessionCaches], given: torch.Tensor | None) -> None:
        """What a ``HandHead`` says. ``given``: the portal's own plan; None: it comes from the portal.

        Raises ``BadGroupHead``, ``PeerLost``, ``EpochOver``.
        """
        written = torch.empty(head.size, dtype=torch.uint8) if given is None else given
        if given is None:
            self._links.receive(written, PORTAL, Tag.PLAN).wait()
        try:
            plan = JoinedPlan.read(written.numpy().tobytes())
            plan.plan(self._spec)
        except ValueError as error:
            raise BadGroupHead(f"no plan to hand over to or from: {error}") from None
        models = [(each.digest, each.dtype, each.first_layer) for each in (plan, self._plan)]
        if models[0] != models[1] or not can_hand_over(plan.as_planned(""), self._plan.as_planned("")):
            raise BadGroupHead("sessions of one of these plans cannot go on in the other")
        if not head.next:
            self._given = self._giving(plan, self._plan)
            return
        self._hand_over(plan, sessions)
        if given is None:
            self._links.send(torch.zeros(1, dtype=torch.uint8), PORTAL, Tag.GIVEN).wait()

    def resumed(self, head: ResumeHead, layers: Sequence[HeldLayer]) -> SessionCaches:
        """A session of the life before. Raises ``BadGroupHead``, ``PeerLost``, ``EpochOver``."""
        had, giving = self._had.sessions.pop(head.session, None), self._given
        if had is None and (giving is None or giving.had_some):
            raise BadGroupHead(f"nothing of session {head.session} was handed over")
        if had is not None and (head.position > had.position or head.positions != had.positions):
            raise BadGroupHead(f"session {head.session} was handed over at {had.position} of {had.positions}")
        if had is not None and self._had.plan != (self._plan if giving is None else giving.before):
            raise BadGroupHead("what was handed over lies in another way")
        caches: list[list[KVCache]] = [[] for _ in layers] if had is None else had.caches
        if giving is not None:
            caches = giving.of(caches, head.positions, head.position)
        session = SessionCaches(layers, head.positions, *self._kind[:2], head.session, self._kind[2])
        session.begin_with(caches, head.position)
        return session

    def forget(self, session: int) -> None:
        """It does not go on."""
        self._had.sessions.pop(session, None)

    def _hand_over(self, plan: JoinedPlan, sessions: Mapping[int, SessionCaches]) -> None:
        """Of all but those that leave heads out, which are replayed."""
        moves = set(plan.names) <= set(self._plan.names)
        giving = self._giving(self._plan, plan) if moves else None
        found = {}
        for number in sorted(number for number, session in sessions.items() if not session.narrow):
            session = sessions[number]
            caches = session.given_up()
            if giving is not None:
                caches = giving.of(caches, session.positions, session.position)
            found[number] = HandedSession(session.positions, session.position, caches)
        if not moves:
            self._kept.put(self._plan, found, self._epoch)
        elif self._me in plan.names:
            self._kept.put(plan, found, self._epoch)

    def _giving(self, before: JoinedPlan, after: JoinedPlan) -> Giving:
        ranks = dict(zip(self._plan.names, self._plan.ranks, strict=True))
        return Giving(self._spec, self._me, before, after, ranks, self._links, *self._kind)
