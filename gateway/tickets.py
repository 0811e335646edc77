"""One prompt at one agent: what the agent says about it, and how that goes into the answer."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec.structs import replace

from gateway.answer import Answer
from gateway.errors import for_client
from wire.decision_messages import Decided
from wire.errors import Code, SessionFailed, code_of
from wire.message import Failed
from wire.messages import AnyMessage
from wire.reading_messages import Vector
from wire.request_messages import Accepted, Delta, Done, Finished, Scored
from wire.text_messages import Tokens

FLOAT_BYTES: Final = 4


class Ticket:
    """One prompt at one agent.

    Args:
        number: what the agent knows it by.
        answer: what it is a part of.
        choices: which of the request's they are; the answer counts over all of them.
        at_once: choices that the agent may generate side by side.
        ends: the message that each choice ends with.
        fingerprint: of what the agent computes with.

    Attributes:
        accepted: resolved with the prompt's tokens, or fails with ``SessionFailed``; until then nothing was answered.
        done: the agent itself has said that it works on this no longer.
    """

    def __init__(
        self,
        number: int,
        answer: Answer,
        choices: range,
        at_once: int,
        *,
        ends: type[Finished] | type[Vector] | type[Tokens] | type[Decided] = Finished,
        fingerprint: str = "",
    ) -> None:
        self.number = number
        self.done = False
        self.accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.answer = answer
        self._choices = choices
        self._offset = choices.start
        self._ends = ends
        self._fingerprint = fingerprint
        self._at_once = at_once
        self._unfinished = set(range(len(choices)))
        self._over = False

    @property
    def choices(self) -> int:
        """Answers wanted of this prompt."""
        return len(self._choices)

    @property
    def load(self) -> int:
        """Answers that the agent has to generate of it at once, now."""
        return min(self._at_once, len(self._unfinished))

    def hear(self, message: AnyMessage) -> str | None:
        """Take what the agent says about this prompt; after its end nothing counts.

        Returns what was wrong where the agent breaks the protocol, which ends it; else None.
        """
        if self._over:
            return None
        if isinstance(message, (Delta, Finished, Scored, Vector, Tokens, Decided)):
            if message.index not in self._unfinished or not self.accepted.done():
                return self._broken("text or the end of a choice that is not open")
            if (type(message) if isinstance(message, (Vector, Tokens, Decided)) else Finished) is not self._ends:
                return self._broken("an answer of another kind than was asked for")
            told = replace(message, index=message.index + self._offset) if self._offset else message
            if isinstance(told, Delta):
                self.answer.delta(told)
            elif isinstance(told, Scored):
                self.answer.scored(told)
            elif isinstance(told, Vector):
                if len(told.data) % FLOAT_BYTES:
                    return self._broken("a vector that is no float32")
                self._unfinished.discard(message.index)
                self.answer.vector(told)
            elif isinstance(told, (Tokens, Decided)):
                self._unfinished.discard(message.index)
                self.answer.told(told)
            else:
                self._unfinished.discard(message.index)
                self.answer.finished(told)
        elif isinstance(message, Accepted):
            if self.accepted.done():
                return self._broken("a second acceptance")
            self.answer.accepted(message.prompt_tokens, self._fingerprint)
            if message.prompt_ids is not None:
                self.answer.prompted(self._choices, message.prompt_ids)
            self.accepted.set_result(message.prompt_tokens)
        elif isinstance(message, Done):
            if self._unfinished or not self.accepted.done():
                return self._broken("done, with choices open")
            if message.accepted > min(message.proposed, message.completion_tokens):
                return self._broken("more drafted tokens accepted than proposed, or than there are")
            self.done = self._over = True
            self.answer.part_done(message)
        elif isinstance(message, Failed):
            self.done = True
            error = SessionFailed(
                code_of(message.code), message.message, param=message.param, retry_after_s=message.retry_after_s
            )
            self.fail(error)
        return None

    def fail(self, error: SessionFailed) -> None:
        """End it with an error: before acceptance it may be tried elsewhere, after it the client sees it."""
        self._over = True
        if not self.accepted.done():
            self.accepted.set_exception(error)
        else:
            self.answer.fail(for_client(error))

    def close(self) -> None:
        """Nobody waits for it any more."""
        self._over = True
        if not self.accepted.cancel() and not self.accepted.cancelled():
            self.accepted.exception()  # Marks it as seen.

    def _broken(self, what: str) -> str:
        self.fail(SessionFailed(Code.UNEXPECTED_MESSAGE, "the device agent broke the protocol"))
        return what
