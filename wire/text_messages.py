"""Between gateway and agent: conversations and how they become text; what is asked of a tokenizer alone.

A ``Tokenize`` is answered as a prompt is: accepted, then by its ``Tokens``, and done.
"""

from __future__ import annotations

from typing import Any

import msgspec

from wire.message import Count, Message, Name, Number


class ToolCall(msgspec.Struct, frozen=True, array_like=True):
    """A call of a tool that the assistant has made; ``arguments`` are JSON, as text."""

    id: Name
    name: Name
    arguments: str


class ChatTurn(msgspec.Struct, frozen=True, array_like=True):
    """One message of a conversation; ``content`` is plain text. An assistant's has the calls that it made, and what was
    thought before it; a tool's says which call it answers."""

    role: Name
    content: str
    name: Name | None = None
    tool_calls: list[ToolCall] = []
    tool_call_id: Name = ""
    reasoning: str = ""


class Tool(msgspec.Struct, frozen=True, array_like=True):
    """A function that the model may call. ``parameters``: a JSON schema of its arguments, as text; empty: it has none.
    ``strict``: arguments obey it also where nothing forces the call. ``param``: the member of the client's request that
    has the schema."""

    name: Name
    description: str
    parameters: str
    strict: bool
    param: Name


class Rendering(msgspec.Struct, frozen=True, array_like=True):
    """How a conversation becomes text: whether the assistant's next turn is begun behind it, or the last one left open
    to go on with, never both; what the chat template is told beside the turns, and of which tools."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    tools: list[Tool] = []


class Tokenize(Message, frozen=True, tag=42):
    """Say which tokens a prompt has, a conversation or a text; or which text these ``ids`` have, where there are any.

    ``special``: with the tokens that the model expects around a text. ``names``: what the tokens are called is told
    too. ``tenant`` and ``traceparent`` as in ``Generate``.
    """

    request: Number
    request_id: Name
    model: Name
    prompt: list[ChatTurn] | str = ""
    ids: list[Count] | None = None
    special: bool = True
    names: bool = False
    rendering: Rendering = Rendering()
    tenant: Name = ""
    traceparent: Name = ""


class Tokens(Message, frozen=True, tag=43):
    """The answer to a ``Tokenize``: ids and, where asked for, their names; or of ids their text. ``max_positions``: of
    one request to the model, prompt and answer. ``index`` is 0."""

    request: Number
    index: Count
    max_positions: Count
    ids: list[Count] = []  # noqa: RUF012 (msgspec copies it)
    names: list[str] | None = None
    text: str = ""
