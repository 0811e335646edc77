"""Which agent gets a request: records in, a choice out. No clock, no connection, no event loop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from gateway.registry.base import AgentRecord
from service.draft_settings import NO_DRAFT
from wire.messages import ServedModel


class Reason(Enum):
    """Why waiting would not help."""

    NO_AGENT = "no_agent"
    MODEL_NOT_FOUND = "model_not_found"
    NO_SUCH_DRAFTER = "no_such_drafter"
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


def choose(agents: Sequence[AgentRecord], model: str, tried: Collection[str] = (), draft: str = "") -> Choice:
    """The least loaded agent that serves ``model``, is not stopping, reaches its cloud, and has not been tried.

    Only those count that have the drafter ``draft``; empty: all of them, each drafts as it likes. Load is the share of
    its capacity in use; among equals the one with fewer requests so far, then the longest known.
    """
    if not agents:
        return Refuse(Reason.NO_AGENT)
    serving = [agent for agent in agents if any(each.id == model for each in agent.models)]
    if not serving:
        return Refuse(Reason.MODEL_NOT_FOUND)
    fit = [agent for agent in serving if any(each.id == model and has_drafter(each, draft) for each in agent.models)]
    if not fit:
        return Refuse(Reason.NO_SUCH_DRAFTER)
    able = [agent for agent in fit if can_serve(agent)]
    if not able:
        return Refuse(Reason.UNAVAILABLE)
    untried = [agent for agent in able if agent.key not in tried]
    if not untried:
        return Refuse(Reason.ALL_TRIED)
    free = [agent for agent in untried if agent.running < agent.capacity]
    if not free:
        return Wait()
    return Use(min(free, key=lambda agent: (agent.running / agent.capacity, agent.assigned)).key)


def has_drafter(model: ServedModel, draft: str) -> bool:
    """Whether a request that names ``draft`` can be answered by who serves this model."""
    return draft in ("", NO_DRAFT) or draft in model.drafts


def drafters_of(model: ServedModel) -> list[str]:
    """What a request to this model may name."""
    return model.drafts if NO_DRAFT in model.drafts else [*model.drafts, NO_DRAFT]


def can_serve(agent: AgentRecord) -> bool:
    """Whether an agent takes new requests: it is not stopping, and reaches its cloud where it needs one."""
    return not agent.draining and agent.cloud_connected is not False


def models_served(agents: Iterable[AgentRecord]) -> list[ServedModel]:
    """Each model once, in the order in which it was first seen.

    Where agents disagree about how long a request may be, the shortest counts: any of them may get the request. The
    drafters are those of all of them: who names one gets an agent that has it.
    """
    found: dict[str, ServedModel] = {}
    for agent in agents:
        for model in agent.models:
            other = found.get(model.id)
            if other is not None:
                shortest = min(model.max_positions, other.max_positions)
                both = list(dict.fromkeys([*other.drafts, *model.drafts]))
                found[model.id] = ServedModel(model.id, shortest, other.created, both)
            else:
                found[model.id] = model
    return list(found.values())


def pick_model(agents: Sequence[AgentRecord], wanted: str | None) -> ServedModel | Refuse:
    """The model a request means: the one it names, or the first there is when it names none."""
    models = models_served(agents)
    if not models:
        return Refuse(Reason.NO_AGENT)
    if wanted is None:
        return models[0]
    return next((model for model in models if model.id == wanted), Refuse(Reason.MODEL_NOT_FOUND))
