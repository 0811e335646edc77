"""What has been said in answer to one client request and not yet been taken by it.

Agents' links put, synchronously, as messages arrive; the one who writes to the client takes, in as large pieces as have
gathered. What waits is bounded: a client that reads too slowly ends its request, nobody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Union

import msgspec
import structlog
from msgspec.structs import replace

from gateway.errors import FINAL, RequestError
from gateway.meter import RequestMeter
from gateway.request import MAX_WHOLE_LOGPROBS, too_many_scores
from wire.decision_messages import Decided
from wire.reading_messages import Vector
from wire.request_messages import Alternative, Delta, Done, Finished, Scored
from wire.text_messages import Tokens

MAX_UNREAD: Final = 4 * 2**20
"""Characters, roughly, that may wait for one client."""

MAX_ANSWER: Final = 64 * 2**20
"""Characters, roughly, of an answer that is sent in one piece; ``request`` refuses what would come near it."""

MAX_WHOLE_IDS: Final = 2**19
"""Token ids of prompts in an answer: they are encoded at once."""

EVENT_SIZE: Final = 64
LOGPROB_SIZE: Final = 64
ID_SIZE: Final = 8
ORIGIN_SIZE: Final = 64
"""What an event, or one alternative, id or origin in it, counts beside its text and bytes."""

log = structlog.get_logger()


class Complete(msgspec.Struct, frozen=True):
    """All choices are complete; tokens of all prompts and all answers, of the prompts those left from before, and
    tokens that were drafted and of those the ones in the answers."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    proposed: int = 0
    accepted: int = 0


Event = Union[Delta, Scored, Vector, Tokens, Decided, Finished, Complete]


class Answer:
    """The events of one request, in order.

    Args:
        parts: prompts to be answered; the answer is complete when all are.
        whole: whoever takes the events keeps them all, to send them in one piece.
        repeated: the same beside what is sent as it comes, to end with all of it.

    Attributes:
        model: the model that answers.
        meter: of the request.
        prompt_ids: where they are asked for, the tokens of the prompt that each choice answers, once it is accepted.
        fingerprint: of what answers; empty before the first prompt is accepted, and where agents do not say.
        total: tokens of the prompts accepted and the answers completed so far.
        over: it is complete or has failed.
        generated: tokens of the answers that have come so far.
        charge: told what it has cost each time that more has come; None: nobody has to know.
    """

    def __init__(
        self, model: str, parts: int, meter: RequestMeter, *, whole: bool = False, repeated: bool = False
    ) -> None:
        self.model = model
        self.prompt_ids: dict[int, list[int]] = {}
        self._prompt_ids = 0
        self.fingerprint = ""
        self.total = Complete(0, 0)
        self.over = False
        self.generated = 0
        self.charge: Callable[[int], None] | None = None
        self._finished: set[int] = set()
        self._parts_left = parts
        self.meter = meter
        self._events: list[Event] = []
        self._whole = whole
        self._held = 0
        self._scores = 0
        self._repeated = repeated
        self._logprobs = 0
        """Of all that will be said again."""
        self._told = 0
        """What all scores came to, characters roughly, taken or not."""
        self._error: RequestError | None = None
        self._ready = asyncio.Event()

    def accepted(self, prompt_tokens: int, fingerprint: str = "") -> None:
        """Note that an agent has accepted one of the prompts."""
        self.fingerprint = self.fingerprint or fingerprint
        self.total = replace(self.total, prompt_tokens=self.total.prompt_tokens + prompt_tokens)
        self.meter.accepted(self.model, prompt_tokens)

    def prompted(self, choices: Sequence[int], ids: list[int]) -> None:
        """Note which tokens the prompt of some choices has."""
        if self.over:
            return
        self._prompt_ids += len(choices) * len(ids)
        if self._prompt_ids > MAX_WHOLE_IDS:
            told = f"the prompts of all answers have over {MAX_WHOLE_IDS} token ids: lower 'n' or leave them out"
            return self.fail(RequestError(400, told, code="invalid_value", param="return_token_ids"))
        self.prompt_ids |= dict.fromkeys(choices, ids)

    def delta(self, delta: Delta) -> None:
        """Take in more text of a choice; its index counts over all prompts."""
        if self.over:
            return
        self.meter.delta(delta.index, delta.tokens)
        self.generated += delta.tokens
        self._held += size_of(delta)
        if self._whole and self._held > MAX_ANSWER:
            log.warning("answer too large", request_id=self.meter.request_id, model=self.model, held=self._held)
            text = "the answer is too large to be sent in one piece: ask for a stream, or for fewer tokens"
            return self.fail(RequestError(500, text, code="answer_too_large", headers=FINAL))
        if not self._whole and self._held > MAX_UNREAD:
            return self.fail(RequestError(408, "the answer was not read fast enough", code="slow_client"))
        self._put(delta)
        if self._repeated:
            self._logprobs += sum(1 + len(each.top) for each in delta.logprobs or ())
            if self._logprobs > MAX_WHOLE_LOGPROBS:  # Its request did not say how long it may be.
                return self.cut(1)
        if self.charge is not None:
            self.charge(self.cost)

    def scored(self, scored: Scored) -> None:
        """Take in scores of a prompt's tokens. They come as fast as a prompt is computed, so how many wait here is
        bounded by how many there may be, not by how fast they are read."""
        if self.over:
            return
        self._scores += sum(1 + len(each.top) for each in scored.tokens)
        if self._scores > MAX_WHOLE_LOGPROBS:  # Of prompts whose tokens nobody could count before.
            return self.fail(too_many_scores(self._scores))
        self._told += size_of(scored)
        if self._told > MAX_ANSWER:
            return self.fail(_says_too_much())
        self._put(scored)

    def vector(self, vector: Vector) -> None:
        """Take in what was read of an input, which is complete with it; its index counts over all parts."""
        if self.over:
            return
        self._held += EVENT_SIZE + len(vector.data)
        if self._held > MAX_ANSWER:  # An agent's own mistake: what a model gives was looked at before it was asked.
            return self.fail(_says_too_much())
        self.meter.finished("stop")
        self._put(vector)

    def told(self, told: Tokens | Decided) -> None:
        """Take in what a tokenizer said, which is all of the answer, or how a question is decided; a link carries no
        more at once than either may be."""
        if not self.over:
            self.meter.finished("stop")
            self._put(told)

    def finished(self, finished: Finished) -> None:
        """Note that a choice is complete."""
        if not self.over:
            self._finished.add(finished.index)
            self.meter.finished(finished.reason, finished.index)
            self._put(finished)

    def part_done(self, done: Done) -> None:
        """Note that all choices of one prompt are complete."""
        if self.over:
            return
        before = self.total
        self.total = Complete(
            before.prompt_tokens,
            before.completion_tokens + done.completion_tokens,
            before.cached_tokens + done.cached_tokens,
            before.proposed + done.proposed,
            before.accepted + done.accepted,
        )
        self.meter.part_done(done)
        self._parts_left -= 1
        if not self._parts_left:
            self._complete()

    def cut(self, choices: int) -> None:
        """End it here: those of so many choices that are not complete have come to their length."""
        if self.over:
            return
        for index in range(choices):
            if index not in self._finished:
                self.finished(Finished(0, index, "length"))
        told = max(self.total.completion_tokens, self.generated)
        self.total = replace(self.total, completion_tokens=told)
        self._complete()

    def _complete(self) -> None:
        self.over = True
        self.meter.done()
        self._put(self.total)

    def fail(self, error: RequestError) -> None:
        """End the answer with an error; what was put before is still delivered. The first end counts."""
        if not self.over:
            self.over = True
            self._error = error
            self._ready.set()

    @property
    def cost(self) -> int:
        """Tokens that it has cost so far, prompts and answers; of one that has not come to its end those that came."""
        return self.total.prompt_tokens + max(self.total.completion_tokens, self.generated)

    def nudge(self) -> None:
        """Let ``take`` return, with an empty list where nothing has come."""
        self._ready.set()

    async def take(self) -> list[Event]:
        """Wait for events, or for a nudge, and return all that have gathered. The last one of all is ``Complete``.

        Raises:
            RequestError: the answer has failed, and all that came before was taken.
        """
        await self._ready.wait()
        if not self._events and self._error is not None:
            raise self._error
        events, self._events = self._events, []
        if not self._whole:
            self._held = 0
        if self._error is None:
            self._ready.clear()
        return events

    def _put(self, event: Event) -> None:
        self._events.append(event)
        self._ready.set()


def size_of(told: Delta | Scored) -> int:
    """Return what holding a delta or scores costs, in characters, roughly."""
    if isinstance(told, Scored):
        each = sum(_size_of_token(token.token, token.top) for token in told.tokens)
    else:
        each = sum(_size_of_token(token.chosen, token.top) for token in told.logprobs or ())
        each += ID_SIZE * len(told.ids or ()) + len(told.reasoning)
        each += ORIGIN_SIZE * len(told.origins or ())
        each += 0 if told.call is None else len(told.call.arguments)
    return EVENT_SIZE + len(told.text) + each


def _size_of_token(token: Alternative, top: Iterable[Alternative]) -> int:
    return sum(LOGPROB_SIZE + len(each.text) + len(each.raw) for each in (token, *top))


def _says_too_much() -> RequestError:
    return RequestError(502, "the device agent says more than its model can", code="upstream_error")
