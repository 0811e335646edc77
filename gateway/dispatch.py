"""Brings requests and agents together: finds a free agent, waits for one, tries another, and cleans up after all.

    async with dispatcher.answering(ask, request_id, meter) as answer:
        events = await answer.take()

When the block is entered an agent has accepted the request; when it is left, however that happens, every agent that
still worked on it has been told to stop and its room is free. This is the only way a request ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from gateway import errors
from gateway.agents import AgentLink
from gateway.answer import Answer
from gateway.config import GatewayConfig
from gateway.errors import RequestError
from gateway.metrics import RequestMeter
from gateway.placing import Placer
from gateway.policy import Reason, Use, Wish, choose, drafters_of, has_drafter, models_served, pick_model
from gateway.registry.base import Registry
from gateway.request import Ask
from gateway.request_size import too_large, too_long
from gateway.tickets import Reservation, Ticket
from gateway.waiting import WaitingRoom
from service.addresses import ANY, host_port
from wire.request_messages import ServedModel

log = structlog.get_logger()


class Dispatcher:
    """All agents connected here and all requests open here."""

    def __init__(self, config: GatewayConfig, registry: Registry) -> None:
        self.draining = False
        self._config = config
        self._registry = registry
        self._links: dict[str, AgentLink] = {}
        self._waiting = WaitingRoom(config.max_waiting)
        self._placer = Placer(config, self._waiting, self._find)
        self._open: Counter[str] = Counter()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def links(self) -> list[AgentLink]:
        """The agents connected, the longest connected first."""
        return list(self._links.values())

    @property
    def running(self) -> int:
        """Prompts that agents work on."""
        return sum(link.busy for link in self._links.values())

    @property
    def waiting(self) -> int:
        """Prompts that wait for an agent."""
        return len(self._waiting)

    def models(self) -> list[ServedModel]:
        """Every model that an agent serves."""
        return models_served(self._registry.known())

    def join(self, link: AgentLink) -> None:
        """An agent has connected."""
        self._links[link.key] = link
        if self.draining:
            link.tell_to_drain(self._config.drain_within_s)
        self.changed(link)

    def leave(self, link: AgentLink) -> None:
        """An agent's connection has ended."""
        del self._links[link.key]
        self._registry.withdraw(link.key)
        link.lost()
        self._waiting.serve(self._find, self._held)

    def changed(self, link: AgentLink) -> None:
        """An agent's load or state is different now."""
        if link.key in self._links:
            self._registry.publish(link.record)
            self._waiting.serve(self._find, self._held)

    @asynccontextmanager
    async def answering(self, ask: Ask, request_id: str, meter: RequestMeter) -> AsyncIterator[Answer]:
        """The answer to a request, from an agent that has accepted it.

        Raises:
            RequestError: nobody can answer it, or the agent has refused it.
        """
        model = self._admit(ask)
        answer = Answer(model.id, len(ask.prompts), meter, whole=not ask.stream)
        tickets: list[Ticket] = []
        rest: asyncio.Task[None] | None = None
        limit: asyncio.TimerHandle | None = None
        self._open[ask.terms.tenant] += 1
        self._idle.clear()
        try:
            tickets.append(await self._placer.start(ask, 0, request_id, answer, self._config.wait_within_s))
            within_s = self._config.request_within_s
            limit = asyncio.get_running_loop().call_later(within_s, answer.fail, errors.out_of_time(within_s))
            if len(ask.prompts) > 1:
                rest = asyncio.create_task(self._start_rest(ask, request_id, answer, tickets))
            yield answer
        finally:
            if limit is not None:
                limit.cancel()
            if rest is not None:
                rest.cancel()
                await asyncio.gather(rest, return_exceptions=True)
            for ticket in tickets:
                ticket.close()
            self._open[ask.terms.tenant] -= 1
            if not self._open[ask.terms.tenant]:
                del self._open[ask.terms.tenant]
            if not self._open:
                self._idle.set()

    def start_draining(self) -> None:
        """Take nothing new; tell the agents; whoever waits is sent elsewhere."""
        if not self.draining:
            self.draining = True
            for link in self.links:
                link.tell_to_drain(self._config.drain_within_s)
            self._waiting.refuse_all(errors.draining())

    async def drain(self) -> bool:
        """Start draining and wait for the open requests, up to the limit; True when all were finished."""
        self.start_draining()
        try:
            await asyncio.wait_for(self._idle.wait(), self._config.drain_within_s)
        except (TimeoutError, asyncio.TimeoutError):
            return False
        return True

    def _admit(self, ask: Ask) -> ServedModel:
        if self.draining:
            raise errors.draining()
        model = pick_model(self._registry.known(), ask.model)
        if isinstance(model, Reason):
            raise self._refusal(model, ask.model or "", ask.terms.draft)
        too_much = too_long(ask, model) or too_large(ask, model.max_positions, self._config.max_total_tokens)
        if too_much is not None:
            raise too_much
        if self._open[ask.terms.tenant] >= self._config.max_client_requests:
            most = self._config.max_client_requests
            raise errors.too_many(
                f"you have {most} requests open already, as many as one client may; wait for some of them"
            )
        return model

    async def _start_rest(self, ask: Ask, request_id: str, answer: Answer, tickets: list[Ticket]) -> None:
        # One prompt after the other, so that a request with many prompts never has all agents alone. They take no place
        # in the waiting room and are not sent away when the gateway stops: their request has been let in.
        try:
            for part in range(1, len(ask.prompts)):
                tickets.append(await self._placer.start(ask, part, request_id, answer, self._config.request_within_s))
        except RequestError as error:
            answer.fail(error)
        except Exception:
            log.exception("bug in the gateway", request_id=request_id)
            answer.fail(errors.internal())

    def _find(self, wish: Wish) -> Reservation | RequestError | None:
        held = {link.key: link.held[wish.tenant] for link in self._links.values()}
        # Agents of other gateways count where models are listed; only who is connected here can be asked.
        here = [record for record in self._registry.known() if record.key in self._links]
        choice = choose(here, wish, held)
        if isinstance(choice, Use):
            return self._links[choice.key].reserve(wish.tenant, choice.at_once)
        return self._refusal(choice, wish.model, wish.draft) if isinstance(choice, Reason) else None

    def _held(self) -> Counter[str]:
        """The answers that each tenant has at agents now."""
        return sum((link.held for link in self._links.values()), Counter())

    def _refusal(self, reason: Reason, model: str, draft: str) -> RequestError:
        known = self._registry.known()
        if not known:
            host = self._config.host if self._config.host not in ANY else "THIS-HOST"
            return errors.no_agent(f"ws://{host_port(host, self._config.port)}")
        served = next((each for each in models_served(known) if each.id == model), None)
        if reason is Reason.MODEL_NOT_FOUND and served is None:
            return errors.model_not_found(model)
        if reason is Reason.NO_SUCH_DRAFTER and served is not None and not has_drafter(served, draft):
            return errors.drafter_not_found(draft, drafters_of(served))
        return errors.agents_unavailable()
