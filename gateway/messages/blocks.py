"""The blocks of Anthropic's messages, and the turns that a model is told. Pure."""

from __future__ import annotations

from typing import Annotated, Final, Union

import msgspec
from msgspec import Meta

from gateway.members import MAX_SHOWN, bad, decoded, strings_in
from gateway.openai_schema import MAX_PART_STRINGS, MAX_PARTS, Label
from wire.text_messages import ChatTurn

THOUGHTS: Final = ("thinking", "redacted_thinking")


class GivenBlock(msgspec.Struct, gc=False):
    """One block of a message, of any kind."""

    type: Label
    text: str | None = None


Blocks = Union[str, Annotated[list[GivenBlock], Meta(max_length=MAX_PARTS)]]

_BLOCKS: Final[msgspec.json.Decoder[str | list[GivenBlock]]] = msgspec.json.Decoder(Blocks)


def blocks_of(raw: msgspec.Raw, param: str, before: int = 0) -> list[GivenBlock]:
    """Read a content: a text, or blocks, thoughts left out.

    Args:
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
        if block.type not in ("text", *THOUGHTS):
            told = (
                f"content blocks of type '{block.type[:MAX_SHOWN]}' are not supported: leave it out, or say it in words"
            )
            raise bad(f"{param}[{at}]", told, "unsupported_value")
        if block.type == "text" and block.text is None:
            raise bad(f"{param}[{at}].text", "a content block of type 'text' has a 'text'")
    return [block for block in content if block.type not in THOUGHTS]


def text_of(blocks: list[GivenBlock]) -> str:
    """Return the texts of blocks, joined by line ends as those of a chat's message are."""
    return "\n".join(block.text for block in blocks if block.text is not None)


def turns_of(role: str, blocks: list[GivenBlock]) -> list[ChatTurn]:
    """Return the turns that a message is."""
    return [ChatTurn(role, text_of(blocks))]
