"""The objects clients get from /v1/responses: members that may be null are there as null. Pure."""

from __future__ import annotations

from typing import Any, Literal, Union

import msgspec
from msgspec import UNSET, UnsetType

from gateway.answer import Complete
from gateway.reply_schema import AnswerTimings
from gateway.responses.items import Item, OutputText, ReasoningText


class CachedDetails(msgspec.Struct, frozen=True):
    """Tokens of the prompt that an earlier turn had left."""

    cached_tokens: int
    cache_write_tokens: int = 0


class ThoughtDetails(msgspec.Struct, frozen=True):
    """Tokens of what was thought before the answer; they are not told apart here."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    """Tokens of one response."""

    input_tokens: int
    input_tokens_details: CachedDetails
    output_tokens: int
    output_tokens_details: ThoughtDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response ends before its end."""

    reason: Literal["max_output_tokens"]


class ResponseError(msgspec.Struct, frozen=True):
    """Why a response has failed; in OpenAI's words."""

    code: Literal["server_error", "invalid_prompt"]
    message: str


class TextConfig(msgspec.Struct, frozen=True):
    """The format of the text, as it was asked for."""

    format: Any


class ResponseObject(msgspec.Struct, frozen=True):
    """A response; first what was asked, as it was understood. ``temperature`` and ``top_p`` are null where the request
    left them to the model. ``timings`` are no member of OpenAI's, see ``AnswerTimings``."""

    id: str
    created_at: int
    model: str
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    store: bool = True
    temperature: float | None = None
    text: TextConfig = TextConfig({"type": "text"})
    tool_choice: Any = "auto"
    tools: list[Any] = []
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: str = "disabled"
    background: bool = False
    object: Literal["response"] = "response"
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    completed_at: int | None = None
    output: list[Item] = []
    usage: ResponseUsage | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    timings: AnswerTimings | UnsetType = UNSET


class Kept(msgspec.Struct, frozen=True):
    """A response as it is kept: with all items that it was made of, those of earlier turns first."""

    response: ResponseObject
    input: list[Item]


class ItemList(msgspec.Struct, frozen=True):
    """GET /v1/responses/{id}/input_items."""

    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class Deleted(msgspec.Struct, frozen=True):
    """DELETE /v1/responses/{id}."""

    id: str
    object: str = "response"
    deleted: bool = True


class ResponseEvent(msgspec.Struct, frozen=True):
    """An event about the whole response."""

    type: str
    sequence_number: int
    response: ResponseObject


class ItemEvent(msgspec.Struct, frozen=True):
    """An event about an item of the output."""

    type: str
    sequence_number: int
    output_index: int
    item: Item


class PartEvent(msgspec.Struct, frozen=True):
    """An event about a part of a message, or of what was thought."""

    type: str
    sequence_number: int
    output_index: int
    item_id: str
    part: Union[OutputText, ReasoningText]
    content_index: int = 0


class TextEvent(msgspec.Struct, frozen=True):
    """An event about a message's text: more of it, or all."""

    type: str
    sequence_number: int
    output_index: int
    item_id: str
    logprobs: list[Any]
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    content_index: int = 0


class ThoughtEvent(msgspec.Struct, frozen=True):
    """An event about what was thought: more of it, or all."""

    type: str
    sequence_number: int
    output_index: int
    item_id: str
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    content_index: int = 0


class ArgumentsEvent(msgspec.Struct, frozen=True):
    """An event about the arguments of a call: more of them, or all."""

    type: str
    sequence_number: int
    output_index: int
    item_id: str
    delta: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    name: str | UnsetType = UNSET


AnyResponseEvent = Union[ResponseEvent, ItemEvent, PartEvent, TextEvent, ThoughtEvent, ArgumentsEvent]


def response_usage_of(complete: Complete) -> ResponseUsage:
    """Return OpenAI's usage object."""
    prompt, generated = complete.prompt_tokens, complete.completion_tokens
    return ResponseUsage(prompt, CachedDetails(complete.cached_tokens), generated, ThoughtDetails(), prompt + generated)
