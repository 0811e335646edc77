"""One connected agent: its link, its load, and the requests it works on (``tickets``)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from gateway.answer import Answer
from gateway.registry.base import AgentRecord
from gateway.request import Ask
from gateway.tickets import Reservation, Ticket
from wire.errors import Code, ConnectionFailed, Crowded, SessionFailed
from wire.limits import PARTY_BYTES, SHORT_FRAME_BYTES
from wire.message import Drain, Failed
from wire.request_messages import AgentHello, AgentState, Cancel, Done
from wire.stream import Stream

CROWDED_BYTES: Final = PARTY_BYTES // 2
"""Bytes waiting to be sent to an agent from which on another one is better: one of the longest requests."""

log = structlog.get_logger()


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
        self._reserved: list[Reservation] = []
        self._assigned = 0
        self._elsewhere = 0
        self._full = False
        self._stopping = False
        self._draining = False
        self._cloud_connected: bool | None = None

    @property
    def busy(self) -> int:
        """Requests of this gateway that the agent runs or is about to get."""
        return len(self._tickets) + len(self._reserved)

    @property
    def held(self) -> Counter[str]:
        """The answers that each tenant has here now, of this gateway's requests."""
        held: Counter[str] = Counter()
        for room in self._reserved:
            held[room.tenant] += room.at_once
        for ticket in self._tickets.values():
            held[ticket.room.tenant] += ticket.load
        return held

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
            running=max(self.held.total() + self._elsewhere, self.hello.capacity if self._full else 0),
            assigned=self._assigned,
            draining=self._draining,
            cloud_connected=self._cloud_connected,
            crowded=self._stream.queued_bytes >= CROWDED_BYTES,
        )

    def reserve(self, tenant: str, at_once: int) -> Reservation:
        """Keep room for a prompt that is on its way here."""
        room = Reservation(self, tenant, at_once)
        self._reserved.append(room)
        self._assigned += 1
        self._changed(self)
        return room

    def release(self, room: Reservation) -> None:
        """Give room back that was kept and not used."""
        self._reserved.remove(room)
        self._changed(self)

    async def ask(
        self, room: Reservation, ask: Ask, part: int, request_id: str, answer: Answer, until: float
    ) -> Ticket:
        """Send prompt ``part`` of a request, in room kept before. A long one waits for its tenant's share of the link,
        and is back here when it has left: what the agent takes to accept begins then.

        Raises:
            ConnectionFailed: the agent is gone; the room is given back.
            Crowded: the link takes no more of this tenant ``until`` then; the room is given back, the link goes on.
            LocalMistake: the request is larger than the link takes; the room is given back, the link goes on.
        """
        self._last_number = self._last_number % (2**32 - 1) + 1
        ticket = Ticket(self, self._last_number, answer, part * ask.terms.n, ask.terms.n, room)
        left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            await self._headroom(ask.most_bytes(part), ask.terms.tenant, until)
            generate = ask.generate(part, ticket.number, request_id, answer.model, room.at_once)
            entry = self._stream.post(generate, (), ask.terms.tenant, lambda: _settle(left))
        except BaseException:
            self.release(room)
            raise
        self._reserved.remove(room)
        self._tickets[ticket.number] = ticket
        if not entry.is_short:
            self._changed(self)
            try:
                # No deadline: each part of it has one, and a link that ends says so.
                await asyncio.wait((left, ticket.accepted), return_when=asyncio.FIRST_COMPLETED)
            except BaseException:
                ticket.close()
                raise
            self._changed(self)
        return ticket

    def eased(self) -> None:
        """Called by a ticket that has fewer choices left than it might have at once."""
        self._changed(self)

    async def _headroom(self, size: int, tenant: str, until: float) -> None:
        """Wait until the link takes a request of so many bytes. Raises ``Crowded`` or ``ConnectionFailed``."""
        if size <= SHORT_FRAME_BYTES or self._stream.headroom.takes(size, tenant):
            return
        try:
            patience_s = max(0.0, until - asyncio.get_running_loop().time())
            await asyncio.wait_for(self._stream.headroom.wait(size, tenant), patience_s)
        except asyncio.TimeoutError:
            raise Crowded from None

    def forget(self, ticket: Ticket, *, cancel: bool) -> None:
        """Called by a ticket that closes."""
        self._tickets.pop(ticket.number, None)
        if cancel and self._stream.failure is None and not self._stream.withdraw(ticket.number):
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
                # What it has to generate beyond our own requests it generates for other gateways.
                ours = sum(ticket.load for ticket in self._tickets.values())
                self._elsewhere = max(0, message.running - ours)
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


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
