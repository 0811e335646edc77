"""The agents that are connected here, and room at them."""

from __future__ import annotations

import hashlib
import os
from collections import Counter

from gateway import errors
from gateway.agents import AgentLink, Reservation
from gateway.config import GatewayConfig
from gateway.conversations import conversation_of
from gateway.errors import RequestError
from gateway.policy import Reason, Use, Wish, choose, drafters_of, has_drafter, models_served, pick_model
from gateway.registry.registry import AgentRecord, Registry
from gateway.request import AnyAsk
from gateway.waiting import WaitingRoom
from service.addresses import ANY, host_port
from wire.reading_messages import Task
from wire.request_messages import ServedModel


class Roster:
    """All agents connected here.

    Attributes:
        waiting: the prompts for which none of them is free.
    """

    def __init__(self, config: GatewayConfig, registry: Registry) -> None:
        self._config = config
        self._registry = registry
        self._links: dict[str, AgentLink] = {}
        secret = config.gateway_token  # With it all gateways know a conversation by the same digests.
        self._key = hashlib.sha256(b"conversations " + secret.encode()).digest() if secret else os.urandom(32)
        self.waiting = WaitingRoom(config.max_waiting)

    @property
    def links(self) -> list[AgentLink]:
        """The agents connected, the longest connected first."""
        return list(self._links.values())

    @property
    def running(self) -> int:
        """Prompts that agents work on."""
        return sum(link.busy for link in self._links.values())

    def known(self) -> list[AgentRecord]:
        """Return all agents, those of other gateways too."""
        return self._registry.known()

    def wish(self, ask: AnyAsk, model: str) -> tuple[Wish, bytes]:
        """Return what each part of a request asks of an agent that serves ``model``, and by what it is known then."""
        whole, before = conversation_of(ask, self._key)
        return Wish(model, frozenset(), ask.draft, ask.tenant, ask.at_once, ask.task, ask.scored_by, before), whole

    def models(self) -> list[ServedModel]:
        """Return every model that an agent serves."""
        return models_served(self._registry.known())

    def model(self, name: str | None, draft: str, task: Task) -> ServedModel:
        """Return the model that a request means, see ``pick_model``. Raises ``RequestError`` where nobody serves it, or
        not for this task."""
        found = pick_model(self._registry.known(), name, task)
        if isinstance(found, Reason):
            raise self._refusal(found, Wish(name or "", draft=draft, task=task))
        return found

    def join(self, link: AgentLink) -> None:
        """An agent has connected."""
        self._links[link.key] = link
        self.changed(link)

    def leave(self, link: AgentLink) -> None:
        """An agent's connection has ended."""
        del self._links[link.key]
        self._registry.withdraw(link.key)
        link.lost()
        self.waiting.serve(self.find, self._held)

    def changed(self, link: AgentLink) -> None:
        """An agent's load or state is different now: whoever waits may have room there."""
        if link.key in self._links:
            self._registry.publish(link.record)
            self.waiting.serve(self.find, self._held)

    def drain(self) -> None:
        """Tell the agents that this gateway stops, and send away whoever waits."""
        for link in self.links:
            link.tell_to_drain(self._config.drain_within_s)
        self.waiting.refuse_all(errors.draining())

    def find(self, wish: Wish) -> Reservation | RequestError | None:
        """Return room at an agent, now; or why there will be none; or None, where waiting may help."""
        held = {link.key: link.held[wish.tenant] for link in self._links.values()}
        # Agents of other gateways count where models are listed; only who is connected here can be asked.
        here = [record for record in self._registry.known() if record.key in self._links]
        choice = choose(here, wish, held)
        if isinstance(choice, Use):
            return self._links[choice.key].reserve(wish.tenant, choice.at_once)
        return self._refusal(choice, wish) if isinstance(choice, Reason) else None

    def _held(self) -> Counter[str]:
        """The answers that each tenant has at agents now."""
        return sum((link.held for link in self._links.values()), Counter())

    def _refusal(self, reason: Reason, wish: Wish) -> RequestError:
        known = self._registry.known()
        if not known:
            host = self._config.host if self._config.host not in ANY else "THIS-HOST"
            at = f"ws://{host_port(host, self._config.port)}"
            text = f"no device agent is connected; start one with: trilby device --gateway {at}"
            return RequestError(503, text, code="no_agent", retry_s=5.0)
        models = models_served(known)
        served = next((each for each in models if each.id == wish.model), None)
        if reason is Reason.MODEL_NOT_FOUND and served is None:
            return errors.model_not_found(wish.model)
        if reason is Reason.OTHER_TASK:
            return errors.other_task(wish.task, (served or models[0]).tasks, wish.model)
        if reason is Reason.NO_SUCH_DRAFTER and served is not None and not has_drafter(served, wish.draft):
            return errors.drafter_not_found(wish.draft, drafters_of(served))
        if reason is Reason.NO_SCORES and served is not None and not served.scores:
            return errors.scores_nothing(wish.model, wish.scored_by)
        text = (
            "the device agents that serve this model are stopping, have no cloud server or group now, or are at "
            "another gateway; see GET /state"
        )
        return RequestError(503, text, code="agents_unavailable", retry_s=5.0)
