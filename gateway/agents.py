"""One connected agent: its link, its load, and the requests it works on.

A ``Ticket`` is one request at one agent. It ends in one place, ``close``, which frees the agent's slot and tells the
agent to stop unless it has said itself that it is done; whoever opens a ticket closes it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
import structlog

from gateway.answer import Answer
from gateway.asking import Ask
from gateway.errors import from_code
from gateway.registry.base import AgentRecord
from wire.connection import failure_of
from wire.errors import Code, ConnectionFailed, SessionFailed
from wire.messages import (
    Accepted,
    AgentHello,
    AgentState,
    Cancel,
    Delta,
    Done,
    Drain,
    Failed,
    Finished,
    Message,
)
from wire.stream import Stream

log = structlog.get_logger()


class Ticket:
    """One prompt at one agent.

    Attributes:
        accepted: resolved with the prompt's tokens, or fails with ``SessionFailed``; until then nothing was answered.
        too_early: the agent refused it as one too many, but something there is ending: it is worth another try.
    """

    def __init__(self, link: AgentLink, number: int, answer: Answer, offset: int, choices: int) -> None:
        self.number = number
        self.too_early = False
        self.accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._link = link
        self._answer = answer
        self._offset = offset
        self._choices = choices
        self._unfinished = set(range(choices))
        self._agent_is_done = False
        self._over = False
        self._closed = False

    def hear(self, message: Message) -> None:
        """Take what the agent says about this request; nothing counts after its end."""
        if self._over:
            return
        if isinstance(message, Delta):
            if message.index not in self._unfinished or not self._accepted():
                return self._broken("text of a choice that is not open")
            shifted = msgspec.structs.replace(message, index=message.index + self._offset) if self._offset else message
            self._answer.delta(shifted)
        elif isinstance(message, Finished):
            if message.index not in self._unfinished or not self._accepted():
                return self._broken("the end of a choice that is not open")
            self._unfinished.discard(message.index)
            self._answer.finished(msgspec.structs.replace(message, index=message.index + self._offset))
        elif isinstance(message, Accepted):
            if self.accepted.done():
                return self._broken("a second acceptance")
            self._answer.accepted(message.prompt_tokens)
            self.accepted.set_result(message.prompt_tokens)
        elif isinstance(message, Done):
            if self._unfinished or not self._accepted():
                return self._broken("done, with choices open")
            if message.accepted > min(message.proposed, message.completion_tokens):
                return self._broken("more drafted tokens accepted than proposed, or than there are")
            self._agent_is_done = self._over = True
            self._link.proposed += message.proposed
            self._link.accepted += message.accepted
            self._answer.part_done(message.completion_tokens, message.cached_tokens, message.proposed, message.accepted)
            self.close()  # The slot is free now, however long the client takes to read.
        elif isinstance(message, Failed):
            self._agent_is_done = True
            code, text = failure_of(message)
            if code is Code.OVERLOADED and not self.accepted.done():
                self.too_early = self._link.turned_away()
            self.fail(SessionFailed(code, text, param=message.param, retry_after_s=message.retry_after_s))
            self.close()

    def fail(self, error: SessionFailed) -> None:
        """End the request with an error: before acceptance it may be tried elsewhere, after it the client sees it."""
        self._over = True
        if not self.accepted.done():
            self.accepted.set_exception(error)
        else:
            self._answer.fail(
                from_code(error.code, error.message, param=error.param, retry_after_s=error.retry_after_s)
            )

    def close(self) -> None:
        """Free the slot; tell the agent to stop if it still works on this. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if not self.accepted.done():
            self.accepted.cancel()
        elif not self.accepted.cancelled():
            self.accepted.exception()  # Marks it as seen.
        self._link.forget(self, cancel=not self._agent_is_done)

    def _accepted(self) -> bool:
        return self.accepted.done() and not self.accepted.cancelled() and self.accepted.exception() is None

    def _broken(self, what: str) -> None:
        log.warning("agent breaks the protocol", agent=self._link.hello.name, what=what)
        self.fail(SessionFailed(Code.UNEXPECTED_MESSAGE, "the device agent broke the protocol"))


class AgentLink:
    """An agent's connection and what runs on it.

    Attributes:
        key: unique among all agents this gateway has seen.
        changed: called after each change of load or state.
        proposed, accepted: tokens drafted in the answers it has completed here, and those of them that are in the text.
    """

    def __init__(self, key: str, hello: AgentHello, stream: Stream, changed: Callable[[AgentLink], None]) -> None:
        self.key = key
        self.hello = hello
        self.since = time.monotonic()
        self.proposed = 0
        self.accepted = 0
        self._stream = stream
        self._changed = changed
        self._tickets: dict[int, Ticket] = {}
        self._last_number = 0
        self._reserved = 0
        self._assigned = 0
        self._elsewhere = 0
        self._full = False
        self._stopping = False
        self._draining = False
        self._cloud_connected: bool | None = None

    @property
    def busy(self) -> int:
        """Requests of this gateway that the agent runs or is about to get."""
        return len(self._tickets) + self._reserved

    @property
    def rtt_s(self) -> float | None:
        """The last round trip to the agent, in seconds."""
        return self._stream.rtt_s

    @property
    def record(self) -> AgentRecord:
        """The agent as the registry and the policy see it."""
        return AgentRecord(
            key=self.key,
            name=self.hello.name,
            models=tuple(self.hello.models),
            capacity=self.hello.capacity,
            running=max(self.busy + self._elsewhere, self.hello.capacity if self._full else 0),
            assigned=self._assigned,
            draining=self._draining,
            cloud_connected=self._cloud_connected,
        )

    def reserve(self) -> None:
        """Keep a slot for a request that is on its way here; ``ask`` or ``release`` follows."""
        self._reserved += 1
        self._assigned += 1
        self._changed(self)

    def release(self) -> None:
        """Give a reserved slot back unused."""
        self._reserved -= 1
        self._changed(self)

    def ask(self, ask: Ask, part: int, request_id: str, answer: Answer) -> Ticket:
        """Send prompt ``part`` of a request, on a slot reserved before.

        Raises:
            ConnectionFailed: the agent is gone; the slot is given back.
            LocalMistake: the request is larger than the link takes; the slot is given back, the link goes on.
        """
        self._last_number = self._last_number % (2**32 - 1) + 1
        ticket = Ticket(self, self._last_number, answer, part * ask.n, ask.n)
        try:
            self._stream.post(ask.generate(part, ticket.number, request_id, answer.model))
        except BaseException:
            self.release()
            raise
        self._reserved -= 1
        self._tickets[ticket.number] = ticket
        return ticket

    def forget(self, ticket: Ticket, *, cancel: bool) -> None:
        """Called by a ticket that closes."""
        self._tickets.pop(ticket.number, None)
        if cancel and self._stream.failure is None:
            self._stopping = True
            try:
                self._stream.post(Cancel(ticket.number))
            except ConnectionFailed:
                log.debug("agent is gone before it could be told to stop", agent=self.hello.name)
        self._changed(self)

    def turned_away(self) -> bool:
        """The agent has refused a request as one too many: whether that will change, since something there is ending.

        It then counts as full until it says something about its load. An agent that frees what was cancelled only once
        it has stopped is fuller, for that long, than we count.
        """
        self._full = self._stopping or len(self._tickets) > 1 or self._elsewhere > 0
        return self._full

    def tell_to_drain(self, within_s: float) -> None:
        """Tell the agent that this gateway stops."""
        if self._stream.failure is None:
            with suppress(ConnectionFailed):  # One that cannot be told must not keep the others from hearing it.
                self._stream.post(Drain(within_s))

    async def listen(self) -> None:
        """Take the agent's messages until the connection ends.

        Raises:
            ConnectionFailed: always, with the reason.
        """
        while True:
            message = (await self._stream.receive()).message
            if isinstance(message, (AgentState, Done)):
                self._full = False
            if isinstance(message, AgentState):
                # What it runs beyond our own requests it runs for other gateways.
                self._elsewhere = max(0, message.running - len(self._tickets))
                self._cloud_connected = message.cloud_connected
                self._stopping = False
                self._changed(self)
            elif isinstance(message, Drain):
                self._draining = True
                self._changed(self)
            else:
                number = message.subject if isinstance(message, Failed) else getattr(message, "request", None)
                ticket = self._tickets.get(number) if number is not None else None
                if ticket is not None:  # Else it was cancelled a moment ago.
                    ticket.hear(message)

    def lost(self) -> None:
        """The connection has ended: end every request that ran on it."""
        for ticket in list(self._tickets.values()):
            ticket.fail(SessionFailed(Code.UPSTREAM_LOST, "the device agent that worked on this request is gone"))
