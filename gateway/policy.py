"""Which agent gets a request: records in, a choice out. No clock, no connection, no event loop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from gateway.registry.base import AgentRecord
from wire.messages import ServedModel


class Reason(Enum):
    """Why waiting would not help."""

    NO_AGENT = "no_agent"
    MODEL_NOT_FOUND = "model_not_found"
    UNAVAILABLE = "unavailable"
    ALL_TRIED = "all_tried"


@dataclass(frozen=True)
class Use:
    """Give it to this agent."""

    key: str


@dataclass(frozen=True)
class Wait:
    """All that could take it are full."""


@dataclass(frozen=True)
class Refuse:
    """Nobody can take it, now or soon."""

    reason: Reason


Choice = Use | Wait | Refuse


def choose(agents: Sequence[AgentRecord], model: str, tried: Collection[str] = ()) -> Choice:
    """The least loaded agent that serves ``model``, is not stopping, reaches its cloud, and has not been tried.

    Load is the share of its capacity in use; among equals the one with fewer requests so far, then the longest known.
    """
    if not agents:
        return Refuse(Reason.NO_AGENT)
    serving = [agent for agent in agents if any(each.id == model for each in agent.models)]
    if not serving:
        return Refuse(Reason.MODEL_NOT_FOUND)
    able = [agent for agent in serving if can_serve(agent)]
    if not able:
        return Refuse(Reason.UNAVAILABLE)
    untried = [agent for agent in able if agent.key not in tried]
    if not untried:
        return Refuse(Reason.ALL_TRIED)
    free = [agent for agent in untried if agent.running < agent.capacity]
    if not free:
        return Wait()
    return Use(min(free, key=lambda agent: (agent.running / agent.capacity, agent.assigned)).key)


def can_serve(agent: AgentRecord) -> bool:
    """Whether an agent takes new requests: it is not stopping, and reaches its cloud where it needs one."""
    return not agent.draining and agent.cloud_connected is not False


def models_served(agents: Iterable[AgentRecord]) -> list[ServedModel]:
    """Each model once, in the order in which it was first seen.

    Where agents disagree about how long a request may be, the shortest counts: any of them may get the request.
    """
    found: dict[str, ServedModel] = {}
    for agent in agents:
        for model in agent.models:
            other = found.get(model.id)
            if other is None or model.max_positions < other.max_positions:
                found[model.id] = model if other is None else ServedModel(model.id, model.max_positions, other.created)
    return list(found.values())


def pick_model(agents: Sequence[AgentRecord], wanted: str | None) -> ServedModel | Refuse:
    """The model a request means: the one it names, or the first there is when it names none."""
    models = models_served(agents)
    if not models:
        return Refuse(Reason.NO_AGENT)
    if wanted is None:
        return models[0]
    return next((model for model in models if model.id == wanted), Refuse(Reason.MODEL_NOT_FOUND))
