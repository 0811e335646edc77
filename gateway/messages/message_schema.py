"""What clients send to /v1/messages, as Anthropic has it, with every number bounded. Unknown members are ignored; those
of things that cannot be done are known, so that they are refused by name.

Beside Anthropic's members there are those of ``Sampled``, as vLLM has them.
"""

from __future__ import annotations

from typing import Annotated, Literal, Union

import msgspec
from msgspec import Meta

from gateway.openai_schema import MAX_TOKENS, MAX_TURNS, NULL, Sampled

AnswerLimit = Union[Annotated[int, Meta(ge=1, le=MAX_TOKENS)], Annotated[float, Meta(ge=1, le=MAX_TOKENS)]]


class GivenMessage(msgspec.Struct, gc=False):
    """One message of a conversation: a text or blocks."""

    role: Literal["user", "assistant"]
    content: msgspec.Raw


class MessagesBody(Sampled, kw_only=True):
    """POST /v1/messages. ``system`` is a text or blocks of text, ``stop_sequences`` is ``StopTexts``."""

    messages: Annotated[list[GivenMessage], Meta(min_length=1, max_length=MAX_TURNS)]
    max_tokens: AnswerLimit
    system: msgspec.Raw = NULL
    stop_sequences: msgspec.Raw = NULL
    tools: msgspec.Raw = NULL
    tool_choice: msgspec.Raw = NULL
    mcp_servers: msgspec.Raw = NULL
    container: msgspec.Raw = NULL


class CountBody(MessagesBody, kw_only=True):
    """POST /v1/messages/count_tokens: nothing is answered, so it need not say how long an answer may be."""

    max_tokens: AnswerLimit = 1
