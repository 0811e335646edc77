"""The objects clients get, member by member as OpenAI's schema has them: members that may be null are there as null."""

from __future__ import annotations

from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

OWNER: Final = "trilby"

FinishReason = Literal["stop", "length", "tool_calls"]


class PromptDetails(msgspec.Struct, frozen=True):
    """Tokens of the prompt that an earlier turn had left."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    """What became of the tokens that were drafted, under OpenAI's names for predicted outputs. Unlike there, those
    rejected are no part of ``completion_tokens``."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | UnsetType = UNSET
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


class PhaseTimings(msgspec.Struct, frozen=True):
    """Where time went, in milliseconds: on the device until it had sent what it asked, on the link, waiting in the
    cloud, and in the cloud's step."""

    device_ms: float
    link_ms: float
    queue_ms: float
    step_ms: float


class RoundsSpent(PhaseTimings, frozen=True):
    """The same, summed over rounds."""

    rounds: int


class AnswerTimings(msgspec.Struct, frozen=True):
    """Where the time of one answer went, until its prompt was answered and after that: no member of OpenAI's schema,
    but named as llama.cpp's server names it. And how many attention heads were left out of the model to save some,
    where that may happen."""

    prompt: PhaseTimings | UnsetType = UNSET
    decode: RoundsSpent | UnsetType = UNSET
    heads_pruned: int | UnsetType = UNSET


class TokenOrigin(msgspec.Struct, frozen=True):
    """Where a token came from, no member of OpenAI's schema: the round, counted from 0, whose verdict it was in, and
    what had drafted it; null: nothing had. Of a round's first token how long the round took, in milliseconds, and where
    that time went, where a cloud took part."""

    round: int
    drafter: str | None
    took_ms: float | UnsetType = UNSET
    timings: PhaseTimings | UnsetType = UNSET


class Heading(msgspec.Struct, frozen=True):
    """What all objects of one answer have in common."""

    id: str
    created: int
    model: str
    include_usage: bool = False
    fingerprint: str | UnsetType = UNSET


class PromptLogprob(msgspec.Struct, frozen=True):
    """The log-probability of a token in a prompt, and how many tokens are as likely or likelier, as vLLM has it."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each token of a prompt, by token id: itself, and its likeliest alternatives; null for the first."""

Choice = TypeVar("Choice")


class Reply(msgspec.Struct, Generic[Choice], frozen=True):
    """A whole answer, or one chunk of it."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET
    timings: AnswerTimings | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


# ---- chat ------------------------------------------------------------------------------------------------------------


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that might have come."""

    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(msgspec.Struct, frozen=True):
    """A token that came, with those that might have."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of a chat choice."""

    content: list[ContentLogprob] | None
    refusal: None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """The function that is called, and its arguments: JSON, as text."""

    name: str
    arguments: str


class ToolCallMade(msgspec.Struct, frozen=True):
    """A call of a tool."""

    id: str
    function: CalledFunction
    type: str = "function"


class FunctionPiece(msgspec.Struct, frozen=True):
    """What is new of the function that is called."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallPiece(msgspec.Struct, frozen=True):
    """What is new of a call of a tool: at first its id, type and name, then its arguments piece by piece."""

    index: int
    function: FunctionPiece
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class ChatAnswer(msgspec.Struct, frozen=True):
    """The message of a chat choice; ``content`` is null where it has none but thoughts or calls.
    ``reasoning_content``, no member of OpenAI's schema, is what was thought before, as other engines name it."""

    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallMade] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One of the answers of a chat completion."""

    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    token_ids: list[int] | UnsetType = UNSET
    token_origins: list[TokenOrigin] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is new in a chunk."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallPiece] | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    """One choice in a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    token_ids: list[int] | UnsetType = UNSET
    token_origins: list[TokenOrigin] | UnsetType = UNSET


# ---- completions -----------------------------------------------------------------------------------------------------


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of a completion choice, in four parallel lists; null for an echoed prompt's first token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    """One of the answers of a completion, or what is new of it."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_origins: list[TokenOrigin] | UnsetType = UNSET


# ---- models ----------------------------------------------------------------------------------------------------------


class ModelCard(msgspec.Struct, frozen=True):
    """A model, with the positions one request may have as an extra member, named as other engines name it; what it can
    be asked to do; the groups of devices that serve it, where there are some; and where heads are left out of prompts
    that would take longer to read than ``t_max_s`` seconds, that it is lossy."""

    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = OWNER
    tasks: list[str] = []
    groups: list[dict[str, Any]] | UnsetType = UNSET
    lossy: bool | UnsetType = UNSET
    t_max_s: float | UnsetType = UNSET


class ModelList(msgspec.Struct, frozen=True):
    """GET /v1/models."""

    data: list[ModelCard]
    object: str = "list"
