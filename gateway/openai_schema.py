"""What clients send: the bodies of OpenAI's chat and completion requests, with every number bounded.

Members OpenAI allows to be null may be null here, and mean the same as left out. Unknown members are ignored, as every
engine does; so are ``tools``: the model is not told of them and answers with text. ``tool_choice`` and
``response_format`` are known, so that what cannot be done is refused rather than ignored. ``draft`` is our own: the
drafter to use for this request.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Union

import msgspec
from msgspec import Meta

from wire.limits import MAX_TEXT

MAX_CHOICES: Final = 128
"""``n``, and ``n`` times the number of prompts."""
MAX_STOPS: Final = 16
MAX_STOP_CHARACTERS: Final = 256
MAX_STOP_IDS: Final = 128
MAX_LOGPROBS: Final = 20
MAX_LOGIT_BIAS: Final = 1024
MAX_LOGIT_BIAS_BYTES: Final = 64 * MAX_LOGIT_BIAS
"""A longer one is not even parsed."""
MAX_TURNS: Final = 4096
MAX_PARTS: Final = 4096
MAX_TOKENS: Final = 2**31 - 1
MAX_TOKEN_ID: Final = 2**31 - 1
MAX_TOP_K: Final = 2**31 - 1
MAX_PENALTY: Final = 2.0
MAX_REPETITION: Final = 10.0
DEFAULT_COMPLETION_TOKENS: Final = 16
"""OpenAI's default of /v1/completions; a chat answer is as long as it gets."""

Label = Annotated[str, Meta(max_length=MAX_TEXT)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
StopText = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
Penalty = Annotated[float, Meta(ge=-MAX_PENALTY, le=MAX_PENALTY)]
TokenLimit = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
LogitBias = Union[dict[str, Annotated[float, Meta(ge=-100, le=100)]], None]

NULL: Final = msgspec.Raw(b"null")


class ContentPart(msgspec.Struct):
    """One part of a message; only parts of type ``text`` can be answered."""

    type: Label
    text: str | None = None


class ChatMessage(msgspec.Struct):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Union[str, Annotated[list[ContentPart], Meta(max_length=MAX_PARTS)], None] = None
    name: Label | None = None
    refusal: str | None = None


class StreamOptions(msgspec.Struct):
    """Options of a stream."""

    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct):
    """The wanted form of the answer."""

    type: Label


class _Common(msgspec.Struct, kw_only=True):
    """Members that chat and completion requests share."""

    model: Label | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: TokenLimit | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Union[str, Annotated[list[StopText], Meta(max_length=MAX_STOPS)], None] = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOP_K)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=MAX_REPETITION)] | None = None
    logit_bias: msgspec.Raw = NULL
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_IDS)] | None = None
    ignore_eos: bool | None = None
    draft: Label | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None


class ChatBody(_Common, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_TURNS)]
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tool_choice: msgspec.Raw = NULL


class CompletionBody(_Common, kw_only=True):
    """POST /v1/completions. ``prompt`` is read apart, since OpenAI gives it four forms."""

    prompt: Union[str, list[Union[str, int, list[int]]]]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Meta(ge=0, le=MAX_CHOICES)] | None = None
    suffix: str | None = None
