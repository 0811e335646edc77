"""Brings requests and agents together: finds a free agent, waits for one, tries another, and cleans up after all.

    async with dispatcher.answering(ask, request_id, meter) as answer:
        events = await answer.take()

When the block is entered an agent has accepted the request; when it is left, however that happens, every agent that
still worked on it has been told to stop and its slot is free. This is the only way a request ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from gateway import errors
from gateway.admission import too_large
from gateway.agents import AgentLink, Ticket
from gateway.answer import Answer
from gateway.asking import Ask
from gateway.config import GatewayConfig
from gateway.errors import RequestError, from_code
from gateway.metrics import RequestMeter
from gateway.policy import Reason, Refuse, Use, choose, drafters_of, has_drafter, models_served, pick_model
from gateway.registry.base import AgentRecord, Registry
from gateway.waiting import WaitingRoom, Wish
from wire.errors import Code, ConnectionFailed, LocalMistake, SessionFailed
from wire.messages import ServedModel

ELSEWHERE: Final = frozenset({Code.OVERLOADED, Code.DRAINING, Code.UPSTREAM_LOST, Code.SESSION_LIMIT, Code.TOKEN_LIMIT})
"""Refusals that are about the agent, not about the request: another agent is tried."""

MAX_LOSSES: Final = 2
"""Agents that may be lost over one prompt: a request that brings agents down must not be taken to all of them."""

MAX_RETURNS: Final = 16
"""How often a prompt goes back to wait for an agent that was fuller than we counted."""

log = structlog.get_logger()


class Dispatcher:
    """All agents connected here and all requests open here."""

    def __init__(self, config: GatewayConfig, registry: Registry) -> None:
        self.draining = False
        self._config = config
        self._registry = registry
        self._links: dict[str, AgentLink] = {}
        self._records: dict[str, AgentRecord] = {}
        self._waiting = WaitingRoom(config.max_waiting)
        self._open = 0
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
        del self._links[link.key], self._records[link.key]
        self._registry.withdraw(link.key)
        link.lost()
        self._waiting.serve(self._find)

    def changed(self, link: AgentLink) -> None:
        """An agent's load or state is different now."""
        if link.key in self._links:
            self._records[link.key] = link.record
            self._registry.publish(link.record)
            self._waiting.serve(self._find)

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
        self._open += 1
        self._idle.clear()
        try:
            tickets.append(await self._start(ask, 0, request_id, answer, self._config.wait_within_s))
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
            self._open -= 1
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
        if isinstance(model, Refuse):
            raise self._refusal(model, ask.model or "", ask.draft)
        too_much = too_large(ask, model.max_positions, self._config.max_total_tokens)
        if too_much is not None:
            raise too_much
        return model

    async def _start_rest(self, ask: Ask, request_id: str, answer: Answer, tickets: list[Ticket]) -> None:
        # One prompt after the other, so that a request with many prompts never has all agents alone. They take no place
        # in the waiting room and are not sent away when the gateway stops: their request has been let in.
        try:
            for part in range(1, len(ask.prompts)):
                tickets.append(await self._start(ask, part, request_id, answer, self._config.request_within_s))
        except RequestError as error:
            answer.fail(error)
        except Exception:
            log.exception("bug in the gateway", request_id=request_id)
            answer.fail(errors.internal())

    async def _start(self, ask: Ask, part: int, request_id: str, answer: Answer, patience_s: float) -> Ticket:
        until = asyncio.get_running_loop().time() + patience_s
        tried: list[str] = []
        refused: SessionFailed | None = None
        losses = returns = 0
        while True:
            wish = (answer.model, frozenset(tried), ask.draft)
            link = await self._slot(wish, until, refused, counted=not part, again=returns > 0)
            try:
                ticket = link.ask(ask, part, request_id, answer)
            except ConnectionFailed:
                refused = SessionFailed(Code.UPSTREAM_LOST, "the device agent is gone")
                tried.append(link.key)
                continue
            except LocalMistake as mistake:
                log.warning("request cannot be sent", request_id=request_id, reason=str(mistake))
                raise errors.too_large_to_send() from mistake
            try:
                await self._accepted(ticket)
                return ticket
            except SessionFailed as failure:
                ticket.close()
                losses += failure.code is Code.UPSTREAM_LOST
                if failure.code not in ELSEWHERE or losses >= MAX_LOSSES:
                    raise _for_client(failure) from failure
                refused = failure
                if ticket.too_early and returns < MAX_RETURNS:
                    returns += 1
                else:
                    tried.append(link.key)
            except BaseException:
                ticket.close()
                raise

    async def _accepted(self, ticket: Ticket) -> None:
        within_s = self._config.accept_within_s
        late = SessionFailed(Code.TIMEOUT, f"the device agent did not accept the request within {within_s:g} s")
        timer = asyncio.get_running_loop().call_later(within_s, ticket.fail, late)
        try:
            await ticket.accepted
        finally:
            timer.cancel()

    async def _slot(
        self, wish: Wish, until: float, refused: SessionFailed | None, *, counted: bool, again: bool
    ) -> AgentLink:
        found = self._find(wish)
        if isinstance(found, RequestError):
            raise _for_client(refused) if refused else found
        if found is not None:
            return found
        patience_s = max(0.0, until - asyncio.get_running_loop().time())
        return await self._waiting.wait(wish, patience_s, counted=counted and not again, first=again)

    def _find(self, wish: Wish) -> AgentLink | RequestError | None:
        choice = choose(list(self._records.values()), *wish)
        if isinstance(choice, Use):
            link = self._links[choice.key]
            link.reserve()
            return link
        model, _, draft = wish
        return self._refusal(choice, model, draft) if isinstance(choice, Refuse) else None

    def _refusal(self, refuse: Refuse, model: str, draft: str) -> RequestError:
        known = self._registry.known()
        if not known:
            host = self._config.host if self._config.host not in ("0.0.0.0", "::") else "THIS-HOST"
            return errors.no_agent(f"ws://{host}:{self._config.port}")
        served = next((each for each in models_served(known) if each.id == model), None)
        if refuse.reason is Reason.MODEL_NOT_FOUND and served is None:
            return errors.model_not_found(model)
        if refuse.reason is Reason.NO_SUCH_DRAFTER and served is not None and not has_drafter(served, draft):
            return errors.drafter_not_found(draft, drafters_of(served))
        return errors.agents_unavailable()


def _for_client(failure: SessionFailed) -> RequestError:
    return from_code(failure.code, failure.message, param=failure.param, retry_after_s=failure.retry_after_s)
