"""The objects clients get from /v1/messages, as Anthropic has them. Pure."""

from __future__ import annotations

from typing import Literal, Union

import msgspec
from msgspec import UNSET, UnsetType

from gateway.answer import Complete
from gateway.reply_schema import AnswerTimings

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageUsage(msgspec.Struct, frozen=True):
    """Tokens of one message; those that an earlier turn had left are told apart."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class TextBlock(msgspec.Struct, frozen=True):
    """Text of the answer."""

    text: str
    type: str = "text"


class ThinkingBlock(msgspec.Struct, frozen=True):
    """What was thought before the answer; nobody here signs it."""

    thinking: str
    signature: str = ""
    type: str = "thinking"


class ToolUseBlock(msgspec.Struct, frozen=True):
    """A call of a tool; ``input`` is an object."""

    id: str
    name: str
    input: msgspec.Raw
    type: str = "tool_use"


Block = Union[TextBlock, ThinkingBlock, ToolUseBlock]


class MessageObject(msgspec.Struct, frozen=True):
    """An answer. ``timings`` are no member of Anthropic's, see ``AnswerTimings``."""

    id: str
    model: str
    content: list[Block]
    usage: MessageUsage
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    type: str = "message"
    role: str = "assistant"
    timings: AnswerTimings | UnsetType = UNSET


class MessageStart(msgspec.Struct, frozen=True):
    """The first event of a stream."""

    message: MessageObject
    type: str = "message_start"


class BlockStart(msgspec.Struct, frozen=True):
    """A block begins."""

    index: int
    content_block: Block
    type: str = "content_block_start"


class BlockPiece(msgspec.Struct, frozen=True):
    """More of a block: of its text, of its thoughts, or of the JSON of a call's input."""

    type: str
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    partial_json: str | UnsetType = UNSET


class BlockDelta(msgspec.Struct, frozen=True):
    """More of a block."""

    index: int
    delta: BlockPiece
    type: str = "content_block_delta"


class BlockStop(msgspec.Struct, frozen=True):
    """A block is complete."""

    index: int
    type: str = "content_block_stop"


class Ping(msgspec.Struct, frozen=True):
    """Nothing has happened."""

    type: str = "ping"


class Ending(msgspec.Struct, frozen=True):
    """Why a message ends."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True):
    """All blocks are complete."""

    delta: Ending
    usage: MessageUsage
    type: str = "message_delta"
    timings: AnswerTimings | UnsetType = UNSET


class MessageStop(msgspec.Struct, frozen=True):
    """The last event of a stream."""

    type: str = "message_stop"


AnyMessageEvent = Union[MessageStart, BlockStart, BlockDelta, BlockStop, Ping, MessageDelta, MessageStop]


def message_usage_of(complete: Complete) -> MessageUsage:
    """Return Anthropic's usage object."""
    cached = complete.cached_tokens
    return MessageUsage(complete.prompt_tokens - cached, complete.completion_tokens, cached)
