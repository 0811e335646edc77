"""Requests and the agents that answer them: who is let in, and the cleaning up after all.

    async with dispatcher.answering(ask, meter) as answer:
        events = await answer.take()

When the block is entered an agent has accepted the request; when it is left, however that happens, every agent that
still worked on it has been told to stop and its room is free. This is the only way a request ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import structlog

from gateway import errors
from gateway.agents import Reservation
from gateway.answer import Answer
from gateway.config import GatewayConfig
from gateway.errors import RequestError
from gateway.meter import RequestMeter
from gateway.placing import place
from gateway.request import AnyAsk, repeats
from gateway.roster import Roster
from wire.request_messages import ServedModel

log = structlog.get_logger()


class Dispatcher:
    """All requests that are open here.

    Args:
        on_drain: called when draining begins.

    Attributes:
        draining: nothing new is taken.
        stopped: nothing is open any more, or has had its time: the process ends.
    """

    def __init__(self, config: GatewayConfig, roster: Roster, on_drain: Callable[[], None] = lambda: None) -> None:
        self.draining = self.stopped = False
        self._on_drain = on_drain
        self._config = config
        self._roster = roster
        self._open: Counter[str] = Counter()
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def answering(
        self, ask: AnyAsk, meter: RequestMeter, kept: Reservation | None = None
    ) -> AsyncIterator[Answer]:
        """Give the answer to a request, from an agent that has accepted it; in room that was ``kept``, or none.

        Raises:
            RequestError: nobody can answer it, or the agent has refused it.
        """
        model = self._admit(ask)
        answer = Answer(model.id, ask.parts, meter, whole=not ask.stream, repeated=ask.stream and repeats(ask))
        rooms: list[Reservation] = []
        rest: asyncio.Task[None] | None = None
        limit: asyncio.TimerHandle | None = None
        self._enter(ask.tenant)
        try:
            wait_s, within_s = self._config.wait_within_s if kept is None else 0.0, self._config.request_within_s
            rooms.append(await place(self._roster, self._config, ask, 0, answer, wait_s, kept))
            text = f"the answer took longer than {within_s:g} s and was given up"
            text += "; ask for fewer tokens or raise --request-within-s"
            late = RequestError(504, text, code="timeout", headers=errors.FINAL)
            limit = asyncio.get_running_loop().call_later(within_s, answer.fail, late)
            if ask.parts > 1:
                rest = asyncio.create_task(self._start_rest(ask, answer, rooms))
            yield answer
        finally:
            if limit is not None:
                limit.cancel()
            if rest is not None:
                rest.cancel()
                await asyncio.gather(rest, return_exceptions=True)
            for room in rooms:
                room.close()
            self._leave(ask.tenant)

    def keep(self, ask: AnyAsk) -> Reservation:
        """Keep room for a request that shall not wait. Raises ``RequestError`` where nobody has room, or can answer."""
        wish, _ = self._roster.wish(ask, self._admit(ask).id)
        found = self._roster.find(wish)
        if isinstance(found, Reservation):
            return found
        raise found or errors.none_free(0.0)

    @contextmanager
    def passing(self, tenant: str) -> Iterator[None]:
        """Count a request that no agent here answers: another gateway does, or what is kept. Raises ``RequestError``
        where nothing more is taken."""
        self._check_open(tenant)
        self._enter(tenant)
        try:
            yield
        finally:
            self._leave(tenant)

    def start_draining(self) -> None:
        """Take nothing new; tell the agents; whoever waits is sent elsewhere."""
        if not self.draining:
            self.draining = True
            self._roster.drain()
            self._on_drain()

    async def drain(self) -> bool:
        """Start draining and wait for the open requests, up to the limit. Returns whether all were finished."""
        self.start_draining()
        log.info("draining", running=self._roster.running)
        with suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), self._config.drain_within_s)
        self.stopped = True
        log.info("stopping", finished=self._idle.is_set())
        return self._idle.is_set()

    def _admit(self, ask: AnyAsk) -> ServedModel:
        if self.draining:
            raise errors.draining()
        model = self._roster.model(ask.model, ask.draft, ask.task)
        if (too_much := ask.refused_by(model, self._config.max_total_tokens)) is not None:
            raise too_much
        self._check_open(ask.tenant)
        return model

    def _check_open(self, tenant: str) -> None:
        if self.draining:
            raise errors.draining()
        if self._open[tenant] >= self._config.max_client_requests:
            most = self._config.max_client_requests
            raise errors.too_many(
                f"you have {most} requests open already, as many as one client may; wait for some of them"
            )

    def _enter(self, tenant: str) -> None:
        self._open[tenant] += 1
        self._idle.clear()

    def _leave(self, tenant: str) -> None:
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]
        if not self._open:
            self._idle.set()

    async def _start_rest(self, ask: AnyAsk, answer: Answer, rooms: list[Reservation]) -> None:
        # One part after the other, so that a request with many prompts never has all agents alone. They take no place
        # in the waiting room and are not sent away when the gateway stops: their request has been let in.
        wait_s = self._config.request_within_s
        try:
            for part in range(1, ask.parts):
                rooms.append(await place(self._roster, self._config, ask, part, answer, wait_s))
        except RequestError as error:
            answer.fail(error)
        except Exception:
            log.exception("bug in the gateway", request_id=answer.meter.request_id)
            answer.fail(errors.internal())
