"""Which agent gets a request: records in, a choice out. No clock, no connection, no event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gateway.registry.registry import AgentRecord
from gateway.shares import granted
from service.modes import NO_DRAFT
from wire.reading_messages import Task
from wire.request_messages import ServedModel


class Reason(Enum):
    """Why waiting would not help."""

    NO_AGENT = "no_agent"
    MODEL_NOT_FOUND = "model_not_found"
    OTHER_TASK = "other_task"
    NO_SUCH_DRAFTER = "no_such_drafter"
    NO_SCORES = "no_scores"
    UNAVAILABLE = "unavailable"
    ALL_TRIED = "all_tried"


@dataclass(frozen=True)
class Wish:
    """What a prompt asks of an agent.

    Attributes:
        tried: agents that shall not be used.
        draft: the drafter named; empty: each drafts as it likes.
        tenant: whose it is; empty: there is only one, and nothing to be left for others.
        choices: answers wanted; an agent that has room for one may get it, so all of them wish the same.
        task: what the model is to do.
        scored_by: see ``AnyAsk``.
        turns: digests of the earlier requests of its conversation, the latest first.
    """

    model: str
    tried: frozenset[str] = frozenset()
    draft: str = ""
    tenant: str = ""
    choices: int = field(default=1, compare=False)
    task: Task = "generate"
    scored_by: str = ""
    turns: tuple[bytes, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Use:
    """Give it to this agent, which may generate so many of its choices at once."""

    key: str
    at_once: int = 1


Choice = Use | Reason | None
"""None: all that could take it are full, wait. A reason: nobody can take it, now or soon."""


def choose(agents: Sequence[AgentRecord], wish: Wish, held: Mapping[str, int]) -> Choice:
    """Choose the least loaded agent that serves the model for the task, is not stopping, reaches its cloud, and was not
    tried.

    Only agents count that have the drafter named, and that score prompts where that is asked for. A conversation goes
    on where it was, if there is room. One whose link is crowded comes last. Load is the share of capacity in use; among
    equals the agent with fewer requests so far is chosen, then the longest known. A prompt with more choices than an
    agent has room for gets what there is, and has them generated a few at a time.

    Args:
        held: the answers that the wish's tenant has already at each agent, by its key.
    """
    if not agents:
        return Reason.NO_AGENT
    serving = [agent for agent in agents if any(each.id == wish.model for each in agent.models)]
    if not serving:
        return Reason.MODEL_NOT_FOUND
    of_model = {agent.key: [each for each in agent.models if each.id == wish.model] for agent in serving}
    doing = [agent for agent in serving if any(wish.task in each.tasks for each in of_model[agent.key])]
    if not doing:
        return Reason.OTHER_TASK
    fit = [agent for agent in doing if any(has_drafter(each, wish.draft) for each in of_model[agent.key])]
    if not fit:
        return Reason.NO_SUCH_DRAFTER
    if wish.scored_by:
        fit = [agent for agent in fit if any(each.scores for each in of_model[agent.key])]
    if not fit:
        return Reason.NO_SCORES
    able = [agent for agent in fit if can_serve(agent)]
    if not able:
        return Reason.UNAVAILABLE
    untried = [agent for agent in able if agent.key not in wish.tried]
    if not untried:
        return Reason.ALL_TRIED
    at_once = {
        agent.key: granted(wish.choices, held.get(agent.key, 0), agent.capacity - agent.running, alone=not wish.tenant)
        for agent in untried
    }
    free = [agent for agent in untried if at_once[agent.key]]
    if not free:
        return None
    kept = next((agent for turn in wish.turns for agent in free if turn in agent.turns), None)
    if kept is not None:
        return Use(kept.key, at_once[kept.key])
    key = min(free, key=lambda agent: (agent.crowded, agent.running / agent.capacity, agent.assigned)).key
    return Use(key, at_once[key])


def has_drafter(model: ServedModel, draft: str) -> bool:
    """Whether a request that names ``draft`` can be answered by who serves this model."""
    return draft in ("", NO_DRAFT) or draft in model.drafts


def drafters_of(model: ServedModel) -> list[str]:
    """Return the drafters that a request to this model may name."""
    return model.drafts if NO_DRAFT in model.drafts else [*model.drafts, NO_DRAFT]


def can_serve(agent: AgentRecord) -> bool:
    """Whether an agent takes new requests: it is not stopping, and reaches its cloud where it needs one."""
    return not agent.draining and agent.cloud_connected is not False


def models_served(agents: Iterable[AgentRecord]) -> list[ServedModel]:
    """Return each model once, in the order in which it was first seen.

    Where agents disagree about how long a request or a prompt may be, the shortest counts: any of them may get it. The
    drafters and tasks are those of all agents: a request that names one goes to an agent that has it; scores likewise.
    Where one prunes, the model may be pruned. Answers are held to forms, questions decided, and tools told, where all
    can do it.
    """
    found: dict[str, ServedModel] = {}
    for agent in agents:
        for model in agent.models:
            other = found.get(model.id)
            if other is not None:
                shortest = min(model.max_positions, other.max_positions)
                both = list(dict.fromkeys([*other.drafts, *model.drafts]))
                said = [each for each in (model.max_characters, other.max_characters) if each]
                tasks, numbers = list(dict.fromkeys([*other.tasks, *model.tasks])), max(other.numbers, model.numbers)
                limits = [each for each in (model.t_max_s, other.t_max_s) if each]
                said_of = (min(said, default=0), tasks, numbers, min(limits, default=0.0), model.scores or other.scores)
                said_by_all = {
                    name: getattr(model, name) and getattr(other, name) for name in ("grammars", "decides", "tools")
                }
                found[model.id] = ServedModel(model.id, shortest, other.created, both, *said_of, **said_by_all)
            else:
                found[model.id] = model
    return list(found.values())


def pick_model(agents: Sequence[AgentRecord], wanted: str | None, task: Task = "generate") -> ServedModel | Reason:
    """Return the model a request means: the one it names, or the first there is for the task when it names none."""
    models = models_served(agents)
    if not models:
        return Reason.NO_AGENT
    named = [model for model in models if wanted is None or model.id == wanted]
    if not named:
        return Reason.MODEL_NOT_FOUND
    return next((model for model in named if task in model.tasks), Reason.OTHER_TASK)
