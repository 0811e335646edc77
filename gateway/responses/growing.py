"""The items of a response as they grow, each with the events that tell it. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from gateway.reply_schema import ContentLogprob
from gateway.responses.items import FunctionCall, Item, Message, OutputText, Reasoning, ReasoningText, Status
from gateway.responses.response_objects import (
    AnyResponseEvent,
    ArgumentsEvent,
    ItemEvent,
    PartEvent,
    TextEvent,
    ThoughtEvent,
)


class Growing(ABC):
    """One item.

    Args:
        index: its place in the output.
        number: the sequence number of the next event.
    """

    def __init__(self, id: str, index: int, number: Callable[[], int]) -> None:
        self.id = id
        self._index = index
        self._number = number
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """All that it says so far."""
        return "".join(self._texts)

    @abstractmethod
    def item(self, status: Status) -> Item:
        """Return it as it is by now."""

    @abstractmethod
    def begun(self) -> Iterator[AnyResponseEvent]:
        """Tell that it begins."""

    @abstractmethod
    def done(self, status: Status) -> Iterator[AnyResponseEvent]:
        """Tell its end."""

    def _event(self, what: str, item: Item) -> ItemEvent:
        return ItemEvent(f"response.output_item.{what}", self._number(), self._index, item)

    def _part(self, what: str, part: OutputText | ReasoningText) -> PartEvent:
        return PartEvent(f"response.content_part.{what}", self._number(), self._index, self.id, part)


class GrowingMessage(Growing):
    """A message; log-probabilities wait for text."""

    def __init__(self, id: str, index: int, number: Callable[[], int]) -> None:
        super().__init__(id, index, number)
        self._logprobs: list[ContentLogprob] = []
        self._due: list[ContentLogprob] = []

    def item(self, status: Status) -> Message:
        return Message(self.id, "assistant", [OutputText(self.text, logprobs=self._logprobs)], status)

    def begun(self) -> Iterator[AnyResponseEvent]:
        yield self._event("added", Message(self.id, "assistant", [], "in_progress"))
        yield self._part("added", OutputText(""))

    def more(self, text: str, logprobs: list[ContentLogprob]) -> Iterator[AnyResponseEvent]:
        """Tell more of its text."""
        self._logprobs += logprobs
        self._due += logprobs
        if text:
            self._texts.append(text)
            due, self._due = self._due, []
            kind = "response.output_text.delta"
            yield TextEvent(kind, self._number(), self._index, self.id, due, delta=text)

    def done(self, status: Status) -> Iterator[AnyResponseEvent]:
        message = self.item(status)
        kind = "response.output_text.done"
        yield TextEvent(kind, self._number(), self._index, self.id, self._logprobs, text=self.text)
        yield self._part("done", OutputText(self.text, logprobs=self._logprobs))
        yield self._event("done", message)


class GrowingReasoning(Growing):
    """What is thought."""

    def item(self, status: Status) -> Reasoning:
        return Reasoning(self.id, content=[ReasoningText(self.text)], status=status)

    def begun(self) -> Iterator[AnyResponseEvent]:
        yield self._event("added", Reasoning(self.id, status="in_progress"))
        yield self._part("added", ReasoningText(""))

    def more(self, text: str) -> Iterator[AnyResponseEvent]:
        """Tell more of it."""
        self._texts.append(text)
        yield ThoughtEvent("response.reasoning_text.delta", self._number(), self._index, self.id, delta=text)

    def done(self, status: Status) -> Iterator[AnyResponseEvent]:
        yield ThoughtEvent("response.reasoning_text.done", self._number(), self._index, self.id, text=self.text)
        yield self._part("done", ReasoningText(self.text))
        yield self._event("done", self.item(status))


class GrowingCall(Growing):
    """A call of a tool."""

    def __init__(self, id: str, index: int, number: Callable[[], int], call_id: str, name: str) -> None:
        super().__init__(id, index, number)
        self._call_id = call_id
        self._name = name

    def item(self, status: Status) -> FunctionCall:
        return FunctionCall(self.id, self._call_id, self._name, self.text, status)

    def begun(self) -> Iterator[AnyResponseEvent]:
        yield self._event("added", self.item("in_progress"))

    def more(self, arguments: str) -> Iterator[AnyResponseEvent]:
        """Tell more of its arguments."""
        self._texts.append(arguments)
        kind = "response.function_call_arguments.delta"
        yield ArgumentsEvent(kind, self._number(), self._index, self.id, delta=arguments)

    def done(self, status: Status) -> Iterator[AnyResponseEvent]:
        kind = "response.function_call_arguments.done"
        yield ArgumentsEvent(kind, self._number(), self._index, self.id, arguments=self.text, name=self._name)
        yield self._event("done", self.item(status))
