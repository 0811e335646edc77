"""One connected agent: its link, its load, the room that is kept there, and the prompts it works on (``tickets``)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from gateway.answer import Answer
from gateway.incidents import Incidents
from gateway.noticed import noticed
from gateway.observation import Observation
from gateway.registry.registry import AgentRecord
from gateway.request import AnyAsk
from gateway.tickets import Ticket
from service.sparing_log import SparingLog
from wire.errors import Code, ConnectionFailed, Crowded, SessionFailed
from wire.group_messages import GroupReport
from wire.limits import PARTY_BYTES
from wire.message import Drain, Failed
from wire.messages import AnyMessage, subject_of
from wire.observed_messages import Observed
from wire.request_messages import AgentHello, AgentState, Cancel, Done
from wire.stream import Stream
from wire.within import within

CROWDED_BYTES: Final = PARTY_BYTES // 2
"""Bytes waiting to be sent to an agent from which on another one is better: one of the longest requests."""

TURNS: Final = 32
"""Chat requests of an agent that are remembered; a device keeps a few conversations."""

often = SparingLog()


@dataclass(eq=False)
class Reservation:
    """What is kept at an agent for one prompt, from before it is sent to its end: so many of its choices at once.

    Whoever has one closes it.

    Attributes:
        ticket: the prompt, once it has been posted.
        too_early: the agent refused it as one too many, but something there is ending: it is worth another try.
    """

    link: AgentLink
    tenant: str
    at_once: int
    ticket: Ticket | None = None
    too_early: bool = False

    @property
    def load(self) -> int:
        """Answers that the agent has to generate for it at once, now: fewer when fewer are left."""
        return self.at_once if self.ticket is None else self.ticket.load

    def close(self) -> None:
        """Free the room, and tell the agent to stop unless it has said itself that it is done. Safe to call twice."""
        self.link.free(self)


class AgentLink:
    """An agent's connection and what runs on it.

    Args:
        changed: called after each change of load or state, also those that the agent brings about.
        incidents: where is noted what goes wrong there.

    Attributes:
        key: unique among all agents this gateway has seen.
        group: the group that it is the portal of, as it reported last.
        proposed, accepted: tokens drafted in the answers it has completed here, and those of them that are in the text.
        restored: how often it has brought sessions to a cloud again, as it reported last.
        observation: what it says of its work while somebody watches.
    """

    def __init__(
        self,
        key: str,
        hello: AgentHello,
        stream: Stream,
        changed: Callable[[AgentLink], None],
        incidents: Incidents | None = None,
    ) -> None:
        self.key = key
        self.hello = hello
        self.since = time.monotonic()
        self.group: GroupReport | None = None
        self.proposed = 0
        self.accepted = 0
        self.restored = 0
        self.observation = Observation()
        self.stream = stream
        self._changed = changed
        self._incidents = Incidents() if incidents is None else incidents
        self._said: AgentState | None = None
        self._rooms: set[Reservation] = set()
        self._asked: dict[int, tuple[Reservation, Ticket]] = {}
        self._last_number = 0
        self._assigned = 0
        self._elsewhere = 0
        self._full = False
        self._stopping = False
        self._draining = False
        self._cloud_connected = hello.cloud_connected
        self._turns: tuple[bytes, ...] = ()

    @property
    def busy(self) -> int:
        """Prompts of this gateway that the agent runs or is about to get."""
        return len(self._rooms)

    @property
    def asked(self) -> list[tuple[Reservation, Ticket]]:
        """The prompts that it has been sent, the oldest first."""
        return list(self._asked.values())

    @property
    def held(self) -> Counter[str]:
        """The answers that each tenant has here now, of this gateway's requests."""
        held: Counter[str] = Counter()
        for room in self._rooms:
            held[room.tenant] += room.load
        return held

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
            crowded=self.stream.queued_bytes >= CROWDED_BYTES,
            group=self.group,
            turns=self._turns,
        )

    def reserve(self, tenant: str, at_once: int) -> Reservation:
        """Keep room for a prompt that is on its way here."""
        room = Reservation(self, tenant, at_once)
        self._rooms.add(room)
        self._assigned += 1
        self._changed(self)
        return room

    def remember(self, turn: bytes) -> None:
        """It has got a chat request with this digest, and may keep its keys and values."""
        if turn:
            self._turns = (turn, *self._turns[: TURNS - 1])
            self._changed(self)

    async def ask(self, room: Reservation, ask: AnyAsk, part: int, answer: Answer, until: float) -> Ticket:
        """Send part ``part`` of a request, in room kept before. A long one waits for its tenant's share of the link,
        and is back here when it has left: what the agent takes to accept begins then.

        Raises:
            ConnectionFailed: the agent is gone.
            Crowded: the link takes no more of this tenant ``until`` then; the link goes on.
            LocalMistake: the request is larger than the link takes; the link goes on.
        """
        self._last_number = self._last_number % (2**32 - 1) + 1
        fingerprint = next((each.fingerprint for each in self.hello.models if each.id == answer.model), "")
        ticket = Ticket(
            self._last_number,
            answer,
            ask.choices_of(part),
            room.at_once,
            ends=ask.ends,
            fingerprint=fingerprint,
        )
        left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        size, tenant = ask.most_bytes(part), ask.tenant
        if not self.stream.takes(size, tenant):
            patience_s = max(0.0, until - asyncio.get_running_loop().time())
            try:
                await within(self.stream.headroom(size, tenant), patience_s)
            except asyncio.TimeoutError:
                raise Crowded from None
        meter = answer.meter
        message = ask.message(part, ticket.number, meter.request_id, answer.model, room.at_once)
        message = replace(message, traceparent=meter.span.traceparent)
        entry = self.stream.post(message, (), tenant, lambda: _settle(left))
        meter.sent()
        room.ticket = ticket
        self._asked[ticket.number] = room, ticket
        self.observation.began(ticket.number, room.tenant)
        if not entry.is_short:
            self._changed(self)
            # No deadline: each part of it has one, and a link that ends says so.
            await asyncio.wait((left, ticket.accepted), return_when=asyncio.FIRST_COMPLETED)
            self._changed(self)
        return ticket

    def free(self, room: Reservation) -> None:
        """See ``Reservation.close``."""
        if room not in self._rooms:
            return
        self._rooms.remove(room)
        if room.ticket is not None:
            del self._asked[room.ticket.number]
            self.observation.ended(room.ticket.number)
            room.ticket.close()
            if not room.ticket.done and not self.stream.withdraw(room.ticket.number):
                self._stopping = True
                with suppress(ConnectionFailed):
                    self.stream.post(Cancel(room.ticket.number))
        self._changed(self)

    def tell_to_drain(self, within_s: float) -> None:
        """Tell the agent that this gateway stops."""
        with suppress(ConnectionFailed):  # One that cannot be told must not keep the others from hearing it.
            self.stream.post(Drain(within_s))

    async def listen(self) -> None:
        """Take the agent's messages until the connection ends.

        Raises:
            ConnectionFailed: always, with the reason.
        """
        while True:
            message = (await self.stream.receive()).message
            if isinstance(message, (AgentState, Done)):
                self._full = False
            if isinstance(message, AgentState):
                self._notice(message)
                # What it has to generate beyond our own requests it generates for other gateways.
                ours = sum(ticket.load for _, ticket in self._asked.values())
                self._elsewhere = max(0, message.running - ours)
                self._cloud_connected = message.cloud_connected
                self.group = message.group
                self._stopping = False
                self._changed(self)
            elif isinstance(message, Observed):
                self.observation.heard(message, time.time())
            elif isinstance(message, Drain):
                self._draining = True
                self._changed(self)
            else:
                asked = self._asked.get(subject_of(message) or 0)
                if asked is not None:  # Else it was cancelled a moment ago.
                    self._hear(*asked, message)

    def lost(self) -> None:
        """The connection has ended: end every request that ran on it."""
        for _, ticket in list(self._asked.values()):
            ticket.fail(SessionFailed(Code.UPSTREAM_LOST, "the device agent that worked on this request is gone"))

    def _hear(self, room: Reservation, ticket: Ticket, message: AnyMessage) -> None:
        before = ticket.load
        if isinstance(message, Failed) and message.code == Code.OVERLOADED and not ticket.accepted.done():
            room.too_early = self._is_full_for_now()
        wrong = ticket.hear(message)
        if wrong is not None:
            request_id = ticket.answer.meter.request_id
            often.warning("agent breaks the protocol", agent=self.hello.name, request_id=request_id, what=wrong)
        elif ticket.done:
            if isinstance(message, Done):
                self.proposed += message.proposed
                self.accepted += message.accepted
            room.close()  # It is free now, however long the client takes to read.
        elif ticket.answer.over:
            room.close()  # The answer was ended before its own end: what else the agent would say, nobody takes.
        elif ticket.load < before:
            self._changed(self)

    def _notice(self, said: AgentState) -> None:
        for kind, who, done, times in noticed(self.hello.name, self._said, said):
            self._incidents.note(time.time(), kind, who, done, times=times)
        self._said, self.restored = said, said.restored

    def _is_full_for_now(self) -> bool:
        """The agent has refused a request as one too many: whether that will change, since something there is ending.

        It then counts as full until it says something about its load. An agent that frees what was cancelled only once
        it has stopped is fuller, for that long, than we count.
        """
        self._full = self._stopping or len(self._asked) > 1 or self._elsewhere > 0
        return self._full


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
