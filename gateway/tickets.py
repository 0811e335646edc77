"""One request at one agent: a ``Ticket``, and the ``Reservation`` that it takes there.

A ticket ends in one place, ``close``, which frees the agent's room and tells it to stop unless it has said itself
that it is done; whoever opens a ticket closes it. A reservation is counted in answers: a ticket takes as many as the
agent may generate of it at once, and fewer when fewer are left.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import structlog

from gateway.answer import Answer
from gateway.errors import for_client
from service.sparing_log import SparingLog
from wire.connection import failure_of
from wire.errors import Code, SessionFailed
from wire.message import Failed
from wire.messages import AnyMessage
from wire.request_messages import Accepted, Delta, Done, Finished

if TYPE_CHECKING:
    from gateway.agents import AgentLink

log = structlog.get_logger()
often = SparingLog()


@dataclass(frozen=True, eq=False)
class Reservation:
    """What is kept at an agent for one prompt, from before it is sent: so many of its choices at once."""

    link: AgentLink
    tenant: str
    at_once: int

    def release(self) -> None:
        """Give it back unused; ``AgentLink.ask`` uses it."""
        self.link.release(self)


class Ticket:
    """One prompt at one agent.

    Attributes:
        accepted: resolved with the prompt's tokens, or fails with ``SessionFailed``; until then nothing was answered.
        too_early: the agent refused it as one too many, but something there is ending: it is worth another try.
        room: what was kept for it.
    """

    def __init__(
        self, link: AgentLink, number: int, answer: Answer, offset: int, choices: int, room: Reservation
    ) -> None:
        self.number = number
        self.room = room
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

    @property
    def load(self) -> int:
        """Answers that the agent has to generate of it at once, now."""
        return min(self.room.at_once, len(self._unfinished))

    def hear(self, message: AnyMessage) -> None:
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
            if len(self._unfinished) < self.room.at_once:
                self._link.eased()
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
            self._answer.part_done(message)
            self.close()  # The room is free now, however long the client takes to read.
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
            self._answer.fail(for_client(error))

    def close(self) -> None:
        """Free the room; tell the agent to stop if it still works on this. Safe to call twice."""
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
        often.warning("agent breaks the protocol", agent=self._link.hello.name, what=what)
        self.fail(SessionFailed(Code.UNEXPECTED_MESSAGE, "the device agent broke the protocol"))
