"""The blocks of Anthropic's messages, and the turns that a model is told. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Union

import msgspec
from msgspec import Meta

from gateway.members import MAX_SHOWN, bad, decoded, strings_in
from gateway.openai_schema import MAX_PART_STRINGS, MAX_PARTS, NULL, Label
from wire.text_messages import ChatTurn, ToolCall

KINDS: Final = {
    "": ("text",),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "user": ("text", "tool_result"),
}
"""Of blocks, by who says them; without a name: of a system's text, and of what a tool gave."""


class GivenBlock(msgspec.Struct, gc=False):
    """One block of a message, of any kind. ``input`` is an object, ``content`` a text or blocks of text."""

    type: Label
    text: str | None = None
    thinking: str | None = None
    id: Label | None = None
    name: Label | None = None
    input: msgspec.Raw = NULL
    tool_use_id: Label | None = None
    content: msgspec.Raw = NULL


Blocks = Union[str, Annotated[list[GivenBlock], Meta(max_length=MAX_PARTS)]]

_BLOCKS: Final[msgspec.json.Decoder[str | list[GivenBlock]]] = msgspec.json.Decoder(Blocks)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


def blocks_of(raw: msgspec.Raw, param: str, role: str = "", before: int = 0) -> list[GivenBlock]:
    """Read a content: a text, or blocks.

    Args:
        role: who says it; empty: it is text alone.
        before: blocks that the messages before it have.

    Raises:
        RequestError: it is neither, has too many blocks, or one that no model here can read.
    """
    data = bytes(raw)
    if data.startswith(b"[") and strings_in(data) > MAX_PART_STRINGS:
        raise bad(param, f"more than {MAX_PARTS} content blocks, or blocks with too many members")
    content = decoded(raw, _BLOCKS, param)
    if isinstance(content, str):
        return [GivenBlock("text", content)]
    if before + len(content) > MAX_PARTS:
        raise bad(param, f"the messages have more than {MAX_PARTS} content blocks together")
    for at, block in enumerate(content):
        if block.type not in KINDS[role]:
            told = f"content blocks of type '{block.type[:MAX_SHOWN]}' are not supported here"
            raise bad(f"{param}[{at}]", f"{told}: leave it out, or say it in words", "unsupported_value")
        if block.type == "text" and block.text is None:
            raise bad(f"{param}[{at}].text", "a content block of type 'text' has a 'text'")
    return content


def text_of(blocks: Sequence[GivenBlock]) -> str:
    """Return the texts of blocks, joined by line ends as those of a chat's message are."""
    return "\n".join(block.text for block in blocks if block.text is not None)


def turns_of(role: str, blocks: Sequence[GivenBlock], param: str, before: int) -> tuple[list[ChatTurn], int]:
    """Return the turns that a message is: what tools gave are turns of their own, before what else a user says. And how
    many blocks there are by then, those within others too.

    Args:
        before: blocks that there were before.

    Raises:
        RequestError: a block has not what it needs.
    """
    calls, results = list[ToolCall](), list[ChatTurn]()
    for at, block in enumerate(blocks):
        place = f"{param}[{at}]"
        if block.type == "tool_use":
            id, name = _said(block.id, f"{place}.id"), _said(block.name, f"{place}.name")
            decoded(block.input, _OBJECT, f"{place}.input")
            calls.append(ToolCall(id, name, bytes(block.input).decode()))
        elif block.type == "tool_result":
            id = _said(block.tool_use_id, f"{place}.tool_use_id")
            null = bytes(block.content) == b"null"
            told = [] if null else blocks_of(block.content, f"{place}.content", "", before)
            before += len(told)
            results.append(ChatTurn("tool", text_of(told), tool_call_id=id))
    texts = [block for block in blocks if block.type == "text"]
    if results and not texts:
        return results, before
    thoughts = "\n".join(block.thinking for block in blocks if block.thinking)
    return [*results, ChatTurn(role, text_of(texts), None, calls, "", thoughts)], before


def _said(value: str | None, param: str) -> str:
    if value is None:
        raise bad(param, f"'{param}' is required", "missing_required_parameter")
    return value
