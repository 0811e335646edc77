"""The events of a response in OpenAI's order, and the response that they make. Pure.

response.created  response.in_progress
for each item: response.output_item.added  …  response.output_item.done
  of a message: response.content_part.added  response.output_text.delta …  .done  response.content_part.done
response.completed, response.incomplete or response.failed
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from gateway.answer import Complete, Event
from gateway.errors import RequestError
from gateway.likelihoods import content_logprobs
from gateway.replies import timings_of
from gateway.reply_schema import ContentLogprob
from gateway.responses.items import Item, Message, OutputText
from gateway.responses.response_objects import (
    AnyResponseEvent,
    IncompleteDetails,
    ItemEvent,
    PartEvent,
    ResponseError,
    ResponseEvent,
    ResponseObject,
    TextEvent,
    response_usage_of,
)
from wire.request_messages import Delta, Finished


class _Text:
    """A message as it grows; log-probabilities wait for text."""

    def __init__(self, id: str, index: int) -> None:
        self.id = id
        self.index = index
        self.texts: list[str] = []
        self.logprobs: list[ContentLogprob] = []
        self.due: list[ContentLogprob] = []

    @property
    def part(self) -> OutputText:
        return OutputText("".join(self.texts), logprobs=self.logprobs)


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
        self._open: _Text | None = None
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
                yield from self._said(event)
            elif isinstance(event, Finished):
                yield from self._finished(event)
            elif isinstance(event, Complete):
                self.response = replace(self.response, usage=response_usage_of(event))

    def _said(self, delta: Delta) -> Iterator[AnyResponseEvent]:
        logged = content_logprobs(delta.logprobs or ())
        if self._open is None:
            if not (delta.text or logged):
                return
            yield from self._begun()
        assert self._open is not None
        text = self._open
        text.logprobs += logged
        text.due += logged
        if delta.text:
            text.texts.append(delta.text)
            due, text.due = text.due, []
            yield self._text("delta", text, due, delta=delta.text)

    def _begun(self) -> Iterator[AnyResponseEvent]:
        text = self._open = _Text(f"msg_{self._ids}", len(self._output))
        yield self._item("added", text.index, Message(text.id, "assistant", [], "in_progress"))
        yield self._part("added", text, OutputText(""))

    def _finished(self, finished: Finished) -> Iterator[AnyResponseEvent]:
        """The end of the only choice: of what is open, and how the response ends."""
        if self._open is None:  # A response has an item, if only one that says nothing.
            yield from self._begun()
        assert self._open is not None
        text = self._open
        status: Literal["completed", "incomplete"] = "incomplete" if finished.reason == "length" else "completed"
        yield self._text("done", text, text.logprobs, text=text.part.text)
        yield self._part("done", text, text.part)
        self._output.append(Message(text.id, "assistant", [text.part], status))
        yield self._item("done", text.index, self._output[-1])
        why = IncompleteDetails("max_output_tokens") if status == "incomplete" else None
        ending = {"status": status, "incomplete_details": why, "timings": timings_of(finished)}
        self.response = replace(self.response, output=self._output, **ending)

    def _about(self, what: str) -> ResponseEvent:
        return ResponseEvent(f"response.{what}", self._next(), self.response)

    def _item(self, what: str, index: int, item: Item) -> ItemEvent:
        return ItemEvent(f"response.output_item.{what}", self._next(), index, item)

    def _part(self, what: str, text: _Text, part: OutputText) -> PartEvent:
        return PartEvent(f"response.content_part.{what}", self._next(), text.index, text.id, part)

    def _text(
        self,
        what: str,
        of: _Text,
        logprobs: list[ContentLogprob],
        *,
        delta: str | UnsetType = UNSET,
        text: str | UnsetType = UNSET,
    ) -> TextEvent:
        return TextEvent(f"response.output_text.{what}", self._next(), of.index, of.id, logprobs, delta, text)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence
