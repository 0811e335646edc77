"""The events of a message in Anthropic's order, and the message that they make. Pure.

message_start
for each block: content_block_start  content_block_delta …  content_block_stop; a ping behind the first start
message_delta  message_stop
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from gateway.answer import Complete, Event
from gateway.messages.message_objects import (
    AnyMessageEvent,
    Block,
    BlockDelta,
    BlockPiece,
    BlockStart,
    BlockStop,
    Ending,
    MessageDelta,
    MessageObject,
    MessageStart,
    MessageStop,
    Ping,
    StopReason,
    TextBlock,
    message_usage_of,
)
from gateway.replies import timings_of
from wire.request_messages import Delta, Finished

REASONS: Final[dict[str, StopReason]] = {"stop": "end_turn", "length": "max_tokens"}


class MessageShape:
    """What a client is told of one message.

    Args:
        id, model: the message's.
        prompt_tokens: of all that it answers.
    """

    def __init__(self, id: str, model: str, prompt_tokens: int) -> None:
        self._message = MessageObject(id, model, [], message_usage_of(Complete(prompt_tokens, 0)))
        self._content: list[Block] = []
        self._texts: list[str] | None = None
        """Of the block that is open."""

    def opening(self, choices: Iterable[int]) -> list[AnyMessageEvent]:
        """Return the events before anything is said."""
        return [MessageStart(self._message)]

    def chunks(self, events: Iterable[Event]) -> list[AnyMessageEvent]:
        """Return the events that tell these."""
        return list(self._events(events))

    def absorb(self, events: Iterable[Event]) -> None:
        """Take these events in for ``whole``."""
        self.chunks(events)

    def whole(self) -> MessageObject:
        """Return the message that all events have made, which end with ``Complete``."""
        return self._message

    def _events(self, events: Iterable[Event]) -> Iterator[AnyMessageEvent]:
        for event in events:
            if isinstance(event, Delta) and event.text:
                yield from self._said(event.text)
            elif isinstance(event, Finished):
                yield from self._closed()
                reason: StopReason = "stop_sequence" if event.stop else REASONS[event.reason]
                ending = {"stop_reason": reason, "stop_sequence": event.stop or None, "timings": timings_of(event)}
                self._message = replace(self._message, content=self._content, **ending)
            elif isinstance(event, Complete):
                self._message = replace(self._message, usage=message_usage_of(event))
                said = self._message
                yield MessageDelta(Ending(said.stop_reason, said.stop_sequence), said.usage, timings=said.timings)
                yield MessageStop()

    def _said(self, text: str) -> Iterator[AnyMessageEvent]:
        at = len(self._content)
        if self._texts is None:
            self._texts = []
            yield BlockStart(at, TextBlock(""))
            if not at:
                yield Ping()
        self._texts.append(text)
        yield BlockDelta(at, BlockPiece("text_delta", text))

    def _closed(self) -> Iterator[AnyMessageEvent]:
        """The end of the block that is open, if one is."""
        if self._texts is not None:
            yield BlockStop(len(self._content))
            self._content.append(TextBlock("".join(self._texts)))
            self._texts = None
