"""Which gateway answers a request: this one, or another that has a better agent. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from gateway.policy import Use, Wish, can_serve, choose
from gateway.registry.registry import AgentRecord, Peer


@dataclass(frozen=True)
class Better:
    """A gateway that should have a request; ``free``: an agent there seems to have room for it now."""

    peer: Peer
    free: bool


def better_gateway(
    here: Sequence[AgentRecord],
    waiting: int,
    peers: Sequence[Peer],
    wish: Wish,
    held: Mapping[str, int],
    sent: Mapping[str, int],
    passed_over: Collection[str] = (),
    full: Collection[str] = (),
) -> Better | None:
    """Return the gateway that should have a request; None: this one.

    The best agent of all decides, by the one policy there is. Where all are full it is the gateway where fewest wait
    for what its agents can do; where nobody can take it, this one says so.

    Args:
        here, waiting: this gateway's agents, and how many wait for them.
        held: the answers that the wish's tenant has already at each agent of this gateway.
        sent: requests sent to each gateway, by its id, that it has not told of yet.
        passed_over: ids of gateways that shall not have it.
        full: ids of those that have had no room for it just now, whatever they had told.
    """
    others = [peer for peer in peers if peer.id not in passed_over]
    owner = {agent.key: peer for peer in others for agent in peer.agents}
    theirs = [agent for peer in others if peer.id not in full for agent in _laden(peer, sent.get(peer.id, 0))]
    theirs += [replace(agent, running=agent.capacity) for peer in others if peer.id in full for agent in peer.agents]
    if not theirs:
        return None
    choice = choose([*here, *theirs], wish, held)
    if isinstance(choice, Use):
        peer = owner.get(choice.key)
        return None if peer is None else Better(peer, free=True)
    if choice is not None:
        return None
    queues = [(_queue(peer.agents, peer.waiting + sent.get(peer.id, 0), wish), peer) for peer in others]
    shortest, peer = min(queues, key=lambda each: each[0])
    return Better(peer, free=False) if shortest < _queue(here, waiting, wish) else None


def _laden(peer: Peer, sent: int) -> list[AgentRecord]:
    """The agents of a gateway that was sent some requests since: they will be at those that have least to do."""
    agents = list(peer.agents)
    for _ in range(min(sent, sum(agent.capacity for agent in agents)) if agents else 0):
        at = min(range(len(agents)), key=lambda each: agents[each].running / agents[each].capacity)
        agents[at] = replace(agents[at], running=agents[at].running + 1)
    return agents


def _queue(agents: Sequence[AgentRecord], waiting: int, wish: Wish) -> float:
    """How many wait for each answer that can be given at once; infinity where none can."""
    able = [agent for agent in agents if can_serve(agent) and any(wish.model == model.id for model in agent.models)]
    capacity = sum(agent.capacity for agent in able)
    return waiting / capacity if capacity else float("inf")
