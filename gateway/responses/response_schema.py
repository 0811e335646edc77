"""What clients send to /v1/responses, as OpenAI has it, with every number bounded. Unknown members are ignored; those
of things that cannot be done are known, so that they are refused by name.

Beside OpenAI's members there are those of ``Sampled``, as vLLM has them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Union

import msgspec
from msgspec import Meta

from gateway.openai_schema import MAX_TURNS, NULL, Label, Logprobs, Sampled, TokenLimit

MAX_METADATA: Final = 16
MAX_METADATA_BYTES: Final = 2**15
MAX_INCLUDED: Final = 16

LOGPROBS: Final = "message.output_text.logprobs"
ENCRYPTED: Final = "reasoning.encrypted_content"
"""There is none; but many clients ask for it, whatever the model."""

MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=MAX_METADATA)]


class GivenItem(msgspec.Struct, gc=False):
    """One item of a conversation, of any kind; a message's ``type`` may be left out. ``arguments`` are a text where a
    function is called, and of other kinds whatever those have there."""

    type: Label | None = None
    id: Label | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: msgspec.Raw = NULL
    call_id: Label | None = None
    name: Label | None = None
    arguments: msgspec.Raw = NULL
    output: msgspec.Raw = NULL


Items = Annotated[list[GivenItem], Meta(min_length=1, max_length=MAX_TURNS)]
Input = Union[str, Items]


class TextMember(msgspec.Struct):
    """How the answer's text is to be."""

    format: msgspec.Raw = NULL


class ResponsesBody(Sampled, kw_only=True):
    """POST /v1/responses. ``input`` is ``Input``, ``metadata`` is ``Metadata``."""

    input: msgspec.Raw
    instructions: str | None = None
    previous_response_id: Label | None = None
    store: bool | None = None
    max_output_tokens: TokenLimit = None
    top_logprobs: Logprobs = None
    include: Annotated[list[Label], Meta(max_length=MAX_INCLUDED)] | None = None
    text: TextMember | None = None
    metadata: msgspec.Raw = NULL
    truncation: Literal["auto", "disabled"] | None = None
    tools: msgspec.Raw = NULL
    tool_choice: msgspec.Raw = NULL
    parallel_tool_calls: bool | None = None
    background: bool | None = None
    conversation: msgspec.Raw = NULL
    prompt: msgspec.Raw = NULL
