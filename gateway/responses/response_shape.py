"""The events of a response in OpenAI's order, and the response that they make. Pure.

response.created  response.in_progress
for each item: response.output_item.added  …  response.output_item.done
  of a message: response.content_part.added  response.output_text.delta …  .done  response.content_part.done
  of reasoning: response.content_part.added  response.reasoning_text.delta …  .done  response.content_part.done
  of a call: response.function_call_arguments.delta …  .done
response.completed, response.incomplete or response.failed
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec.structs import replace

from gateway.answer import Complete, Event
from gateway.errors import RequestError
from gateway.likelihoods import content_logprobs
from gateway.responses.growing import Growing, GrowingCall, GrowingMessage, GrowingReasoning
from gateway.responses.items import Item, Status
from gateway.responses.response_objects import (
    AnyResponseEvent,
    IncompleteDetails,
    ResponseError,
    ResponseEvent,
    ResponseObject,
    response_usage_of,
)
from gateway.usage import timings_of
from wire.request_messages import CallPiece, Delta, Finished


class ResponseShape:
    """What a client is told of one response.

    Args:
        response: it, before anything is said; with the model that answers.

    Attributes:
        response: as it is by now.
    """

    def __init__(self, response: ResponseObject) -> None:
        self.response = response
        self._sequence = -1
        self._open: Growing | None = None
        self._output: list[Item] = []
        self._ids = response.id.removeprefix("resp_")

    def opening(self, choices: Iterable[int]) -> list[AnyResponseEvent]:
        """Return the events before anything is said."""
        return [self._about("created"), self._about("in_progress")]

    def chunks(self, events: Iterable[Event]) -> list[AnyResponseEvent]:
        """Return the events that tell these."""
        return list(self._events(events))

    def absorb(self, events: Iterable[Event]) -> None:
        """Take these events in for ``whole``."""
        self.chunks(events)

    def whole(self) -> ResponseObject:
        """Return the response that all events have made, which end with ``Complete``."""
        return self.response

    def closing(self) -> list[AnyResponseEvent]:
        """Return the last event of a response that has come to its end."""
        return [self._about(self.response.status)]

    def failed(self, error: RequestError) -> list[AnyResponseEvent]:
        """Return the last event of a response that has failed."""
        told = ResponseError("server_error" if error.status >= 500 else "invalid_prompt", error.message)
        self.response = replace(self.response, status="failed", error=told, output=list(self._output))
        return [self._about("failed")]

    def _events(self, events: Iterable[Event]) -> Iterator[AnyResponseEvent]:
        for event in events:
            if isinstance(event, Delta):
                yield from self._told(event)
            elif isinstance(event, Finished):
                yield from self._finished(event)
            elif isinstance(event, Complete):
                self.response = replace(self.response, usage=response_usage_of(event))

    def _told(self, delta: Delta) -> Iterator[AnyResponseEvent]:
        if delta.reasoning:
            thought = self._open
            if not isinstance(thought, GrowingReasoning):
                thought = GrowingReasoning(self._id("rs"), self._next_index, self._next)
                yield from self._begun(thought)
            yield from thought.more(delta.reasoning)
        logged = content_logprobs(delta.logprobs or ())
        # What tokens of other items were is not told; those without text belong to the message that they are in.
        others = delta.call is not None or isinstance(self._open, (GrowingReasoning, GrowingCall))
        if delta.text or (logged and not others):
            message = self._open
            if not isinstance(message, GrowingMessage):
                message = GrowingMessage(self._id("msg"), self._next_index, self._next)
                yield from self._begun(message)
            yield from message.more(delta.text, logged)
        if delta.call is not None:
            yield from self._called(delta.call)

    def _called(self, piece: CallPiece) -> Iterator[AnyResponseEvent]:
        call = self._open
        if piece.id:
            call = GrowingCall(self._id("fc"), self._next_index, self._next, piece.id, piece.name)
            yield from self._begun(call)
        if piece.arguments and isinstance(call, GrowingCall):
            yield from call.more(piece.arguments)

    def _begun(self, item: Growing) -> Iterator[AnyResponseEvent]:
        """The end of the item before, and the beginning of this one."""
        yield from self._closed("completed")
        self._open = item
        yield from item.begun()

    def _closed(self, status: Status) -> Iterator[AnyResponseEvent]:
        if self._open is not None:
            yield from self._open.done(status)
            self._output.append(self._open.item(status))
            self._open = None

    def _finished(self, finished: Finished) -> Iterator[AnyResponseEvent]:
        """The end of the only choice: of what is open, and how the response ends."""
        if self._open is None and not self._output:  # A response has an item, if only one that says nothing.
            yield from self._begun(GrowingMessage(self._id("msg"), 0, self._next))
        status: Literal["completed", "incomplete"] = "incomplete" if finished.reason == "length" else "completed"
        yield from self._closed(status)
        why = IncompleteDetails("max_output_tokens") if status == "incomplete" else None
        ending = {"status": status, "incomplete_details": why, "timings": timings_of(finished)}
        self.response = replace(self.response, output=self._output, **ending)

    def _about(self, what: str) -> ResponseEvent:
        return ResponseEvent(f"response.{what}", self._next(), self.response)

    @property
    def _next_index(self) -> int:
        """The place of the next item in the output."""
        return len(self._output) + (self._open is not None)

    def _id(self, kind: str) -> str:
        index = self._next_index
        return f"{kind}_{self._ids}_{index}" if index else f"{kind}_{self._ids}"

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence
