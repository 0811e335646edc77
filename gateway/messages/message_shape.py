"""The events of a message in Anthropic's order, and the message that they make. Pure.

message_start
for each block: content_block_start  content_block_delta …  content_block_stop; a ping behind the first start
message_delta  message_stop
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
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
    ThinkingBlock,
    ToolUseBlock,
    message_usage_of,
)
from gateway.usage import timings_of
from wire.request_messages import CallPiece, Delta, Finished

REASONS: Final[dict[str, StopReason]] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

NO_INPUT: Final = msgspec.Raw(b"{}")


class MessageShape:
    """What a client is told of one message.

    Args:
        id, model: the message's.
        prompt_tokens: of all that it answers.
    """

    def __init__(self, id: str, model: str, prompt_tokens: int) -> None:
        self._message = MessageObject(id, model, [], message_usage_of(Complete(prompt_tokens, 0)))
        self._content: list[Block] = []
        self._kind = ""
        """Of the block that is open; empty: none is."""
        self._texts: list[str] = []
        """What it says."""
        self._call: CallPiece | None = None
        """The beginning of the call that it is."""

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
            if isinstance(event, Delta):
                yield from self._told(event)
            elif isinstance(event, Finished):
                yield from self._closed(cut=event.reason == "length")
                reason: StopReason = "stop_sequence" if event.stop else REASONS[event.reason]
                if reason == "tool_use" and not any(isinstance(each, ToolUseBlock) for each in self._content):
                    reason = "end_turn"
                ending = {"stop_reason": reason, "stop_sequence": event.stop or None, "timings": timings_of(event)}
                self._message = replace(self._message, content=self._content, **ending)
            elif isinstance(event, Complete):
                self._message = replace(self._message, usage=message_usage_of(event))
                said = self._message
                yield MessageDelta(Ending(said.stop_reason, said.stop_sequence), said.usage, timings=said.timings)
                yield MessageStop()

    def _told(self, delta: Delta) -> Iterator[AnyMessageEvent]:
        if delta.reasoning:
            yield from self._begun("thinking", ThinkingBlock(""))
            yield self._more(BlockPiece("thinking_delta", thinking=delta.reasoning), delta.reasoning)
        if delta.text:
            yield from self._begun("text", TextBlock(""))
            yield self._more(BlockPiece("text_delta", delta.text), delta.text)
        piece = delta.call
        if piece is not None and piece.id:
            yield from self._closed()
            self._call = piece
            yield from self._begun("tool_use", ToolUseBlock(piece.id, piece.name, NO_INPUT))
        if piece is not None and piece.arguments and self._kind == "tool_use":
            yield self._more(BlockPiece("input_json_delta", partial_json=piece.arguments), piece.arguments)

    def _begun(self, kind: str, block: Block) -> Iterator[AnyMessageEvent]:
        """The beginning of a block, where none of its kind is open."""
        if self._kind == kind:
            return
        yield from self._closed()
        self._kind = kind
        at = len(self._content)
        yield BlockStart(at, block)
        if not at:
            yield Ping()

    def _more(self, piece: BlockPiece, text: str) -> BlockDelta:
        self._texts.append(text)
        return BlockDelta(len(self._content), piece)

    def _closed(self, *, cut: bool = False) -> Iterator[AnyMessageEvent]:
        """The end of the block that is open, if one is; cut: by the answer's length."""
        if not self._kind:
            return
        yield BlockStop(len(self._content))
        text = "".join(self._texts)
        if self._kind == "tool_use":
            assert self._call is not None
            called = _input_of(text)
            if called is None and not cut:  # Nobody may run a tool with no arguments for it.
                self._content.append(TextBlock(text))
            else:
                self._content.append(
                    ToolUseBlock(self._call.id, self._call.name, NO_INPUT if called is None else called)
                )
        else:
            self._content.append(TextBlock(text) if self._kind == "text" else ThinkingBlock(text))
        self._kind, self._texts = "", []


def _input_of(text: str) -> msgspec.Raw | None:
    """The input of a call, a JSON object; None where it is none."""
    if not text:
        return NO_INPUT
    try:
        return msgspec.Raw(text.encode()) if isinstance(msgspec.json.decode(text), dict) else None
    except (msgspec.DecodeError, RecursionError):
        return None
