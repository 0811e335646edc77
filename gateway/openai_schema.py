"""What clients send: the bodies of OpenAI's chat and completion requests, with every number bounded.

Members OpenAI allows to be null may be null here, and mean the same as left out. Unknown members are ignored, as every
engine does; so are the old ``functions``: the model is not told of them and answers with text. ``function_call`` is
known, so that what cannot be done is refused rather than ignored.
``draft``, ``exact`` and ``return_token_origins`` are our own: the drafter to use for this request; whether nothing may
be left out to be faster; whether the answer says of each token what had drafted it.

Whole numbers may be written with a point, as some clients do (``100.0``). Members that may be lists stay raw at first:
how many members a list has is looked at before it is decoded, since a million objects would hold up everybody else.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Protocol, Union

import msgspec
from msgspec import Meta

from wire.limits import MAX_TEXT

MAX_CHOICES: Final = 128
"""``n``, and ``n`` times the number of prompts."""
MAX_STOPS: Final = 16
MAX_STOP_CHARACTERS: Final = 256
MAX_STOP_BYTES: Final = 2**16
MAX_STOP_IDS: Final = 128
MAX_STOP_ID_BYTES: Final = 64 * MAX_STOP_IDS
MAX_BAD_WORDS: Final = 128
MAX_TEMPLATE_BYTES: Final = 2**15
"""Of what a chat template is told beside the messages."""
MAX_TEMPLATE_DEPTH: Final = 16
MAX_ALLOWED_IDS: Final = 2**14
MAX_ALLOWED_ID_BYTES: Final = 16 * MAX_ALLOWED_IDS
MAX_PROMPT_IDS: Final = 2**19
"""Token ids of all prompts of a request; more would take longer to read than anybody else should wait."""
MAX_LOGPROBS: Final = 20
MAX_LOGIT_BIAS: Final = 1024
MAX_LOGIT_BIAS_BYTES: Final = 64 * MAX_LOGIT_BIAS
"""A longer one is not even parsed, as longer stops are not."""
MAX_TURNS: Final = 4096
MAX_PARTS: Final = 4096
"""Parts of all messages of a conversation."""
MAX_PART_STRINGS: Final = 16 * MAX_PARTS
"""Strings, names of members included, in a message that has parts; one with more is not even parsed."""
MAX_CALLS: Final = 4096
"""Calls of tools in all messages of a conversation."""
MAX_TOKENS: Final = 2**31 - 1
MAX_TOKEN_ID: Final = 2**31 - 1
MAX_PRIORITY: Final = 2**31 - 1
MAX_TOP_K: Final = 2**31 - 1
MAX_PENALTY: Final = 2.0
LEAST_REPETITION: Final = 0.01
MAX_REPETITION: Final = 10.0
AS_LONG_AS_IT_GETS: Final = -1
"""As ``max_tokens``; clients of llama.cpp send it."""
ANY_SEED: Final = -1
"""As ``seed``: a random one; clients of llama.cpp send it."""
DEFAULT_COMPLETION_TOKENS: Final = 16
"""OpenAI's default of /v1/completions; a chat answer is as long as it gets."""

Label = Annotated[str, Meta(max_length=MAX_TEXT)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
StopText = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
Penalty = Annotated[float, Meta(ge=-MAX_PENALTY, le=MAX_PENALTY)]
StopTexts = Union[str, Annotated[list[StopText], Meta(max_length=MAX_STOPS)], None]
StopIds = Union[Annotated[list[TokenId], Meta(max_length=MAX_STOP_IDS)], None]
Choices = Union[Annotated[int, Meta(ge=1, le=MAX_CHOICES)], Annotated[float, Meta(ge=1, le=MAX_CHOICES)], None]
BestOf = Union[Annotated[int, Meta(ge=0, le=MAX_CHOICES)], Annotated[float, Meta(ge=0, le=MAX_CHOICES)], None]
TokenLimit = Union[Annotated[int, Meta(ge=-1, le=MAX_TOKENS)], Annotated[float, Meta(ge=-1, le=MAX_TOKENS)], None]
LeastTokens = Union[Annotated[int, Meta(ge=0, le=MAX_TOKENS)], Annotated[float, Meta(ge=0, le=MAX_TOKENS)], None]
BadWords = Union[Annotated[list[StopText], Meta(max_length=MAX_BAD_WORDS)], None]
AllowedIds = Union[Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_ALLOWED_IDS)], None]
Priority = Union[
    Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)],
    Annotated[float, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)],
    None,
]
Seed = Union[
    Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)], Annotated[float, Meta(ge=-(2.0**63), lt=2.0**63)], None
]  # fmt: skip
TopK = Union[Annotated[int, Meta(ge=-1, le=MAX_TOP_K)], Annotated[float, Meta(ge=-1, le=MAX_TOP_K)], None]
Logprobs = Union[Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)], Annotated[float, Meta(ge=0, le=MAX_LOGPROBS)], None]
LogitBias = Union[dict[str, Annotated[float, Meta(ge=-100, le=100)]], None]

NULL: Final = msgspec.Raw(b"null")


class ContentPart(msgspec.Struct, gc=False):
    """One part of a message; only texts can be answered, and what an assistant has refused before."""

    type: Label
    text: str | None = None
    refusal: str | None = None


Content = Union[str, Annotated[list[ContentPart], Meta(max_length=MAX_PARTS)], None]


class CalledFunction(msgspec.Struct, gc=False):
    """The function that was called, and its arguments: JSON, as text."""

    name: Label
    arguments: str | None = None


class Called(msgspec.Struct, gc=False):
    """A call of a tool; ``function`` is missing where it is of another type."""

    id: Label
    type: Label | None = None
    function: CalledFunction | None = None


CalledList = Union[list[Called], None]


class ChatMessage(msgspec.Struct, gc=False):
    """One message of a conversation; ``content`` is a ``Content``, ``tool_calls`` a ``CalledList``."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: msgspec.Raw = NULL
    name: Label | None = None
    refusal: str | None = None
    tool_calls: msgspec.Raw = NULL
    tool_call_id: Label | None = None
    reasoning_content: str | None = None


Turns = Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_TURNS)]


class StreamOptions(msgspec.Struct):
    """Options of a stream."""

    include_usage: bool | None = None


class FormMembers(msgspec.Struct, kw_only=True):
    """Members that say of what form the answer is to be; ``forms`` reads them."""

    response_format: msgspec.Raw = NULL
    structured_outputs: msgspec.Raw = NULL
    guided_json: msgspec.Raw = NULL
    guided_regex: msgspec.Raw = NULL
    guided_choice: msgspec.Raw = NULL
    guided_grammar: msgspec.Raw = NULL


class Sampled(FormMembers, kw_only=True):
    """Members that all requests for text share. ``stop`` is ``StopTexts``, ``stop_token_ids`` is ``StopIds``,
    ``bad_words`` is ``BadWords``, ``allowed_token_ids`` is ``AllowedIds``."""

    model: Label | None = None
    stream: bool | None = None
    stop: msgspec.Raw = NULL
    seed: Seed = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: TopK = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=LEAST_REPETITION, le=MAX_REPETITION)] | None = None
    logit_bias: msgspec.Raw = NULL
    stop_token_ids: msgspec.Raw = NULL
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: LeastTokens = None
    bad_words: msgspec.Raw = NULL
    allowed_token_ids: msgspec.Raw = NULL
    cache_salt: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)] | None = None
    priority: Priority = None
    draft: Label | None = None
    exact: bool | None = None


class _Common(Sampled, kw_only=True):
    """Members that chat and completion requests share."""

    n: Choices = None
    max_tokens: TokenLimit = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_token_origins: bool | None = None
    user: str | None = None
    prompt_logprobs: Logprobs = None


class Rendered(Protocol):
    """How messages become text. ``chat_template_kwargs`` is an object with any members."""

    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: msgspec.Raw


class ChatBody(_Common, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Turns
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: msgspec.Raw = NULL
    max_completion_tokens: TokenLimit = None
    logprobs: bool | None = None
    top_logprobs: Logprobs = None
    tools: msgspec.Raw = NULL
    tool_choice: msgspec.Raw = NULL
    parallel_tool_calls: bool | None = None
    function_call: msgspec.Raw = NULL


class CompletionBody(_Common, kw_only=True):
    """POST /v1/completions. ``prompt`` is read apart, since OpenAI gives it four forms."""

    prompt: msgspec.Raw
    echo: bool | None = None
    logprobs: Logprobs = None
    best_of: BestOf = None
    suffix: str | None = None
