"""The items of a conversation: what clients send, what they get, and the turns that a model is told. Pure.

Reasoning is read over: no model here is told what another one has thought.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, Union

import msgspec

from gateway.members import MAX_SHOWN, bad, content_texts, decoded
from gateway.reply_schema import ContentLogprob
from gateway.responses.response_schema import GivenItem, Input
from wire.text_messages import ChatTurn

Status = Literal["in_progress", "completed", "incomplete"]

_INPUT: Final[msgspec.json.Decoder[str | list[GivenItem]]] = msgspec.json.Decoder(Input)
TEXT_PARTS: Final = ("input_text", "output_text", "text")


class InputText(msgspec.Struct, frozen=True, tag="input_text"):
    """Text of a client."""

    text: str


class OutputText(msgspec.Struct, frozen=True, tag="output_text"):
    """Text of a model."""

    text: str
    annotations: tuple[()] = ()
    logprobs: list[ContentLogprob] = []


class Message(msgspec.Struct, frozen=True, tag="message"):
    """One message."""

    id: str
    role: str
    content: list[Union[InputText, OutputText]]
    status: Status = "completed"


Item = Union[Message]


def items_of(raw: msgspec.Raw, prefix: str) -> list[Item]:
    """Read the ``input`` of a request.

    Args:
        prefix: what the ids of items begin with that have none.

    Raises:
        RequestError: it is not as it has to be, or has what no model here can read.
    """
    given = decoded(raw, _INPUT, "input")
    if isinstance(given, str):
        return [Message(f"msg_{prefix}_0", "user", [InputText(given)])]
    items: list[Item] = []
    parts = 0
    for at, each in enumerate(given):
        if each.type == "reasoning":
            continue
        item = _read(each, f"input[{at}]", f"{prefix}_{at}", parts)
        parts += len(item.content)
        items.append(item)
    if not items:
        raise bad("input", "'input' has nothing that a model can be told: send a message")
    return items


def turns_of(items: Iterable[Item], instructions: str | None) -> list[ChatTurn]:
    """Return the turns of a conversation; ``instructions`` are the system's, before all others."""
    turns = [] if instructions is None else [ChatTurn("system", instructions)]
    for item in items:
        role = "system" if item.role == "developer" else item.role
        turns.append(ChatTurn(role, "\n".join(part.text for part in item.content)))
    return turns


def _read(given: GivenItem, param: str, number: str, parts: int) -> Item:
    if given.type not in (None, "message"):
        told = f"items of type '{given.type[:MAX_SHOWN]}' are not supported: leave it out"
        raise bad(f"{param}.type", told, "unsupported_value")
    if given.role is None:
        raise bad(f"{param}.role", f"'{param}.role' is required", "missing_required_parameter")
    texts = content_texts(given.content, f"{param}.content", parts, TEXT_PARTS)
    if texts is None:
        raise bad(f"{param}.content", f"'{param}.content' is required", "missing_required_parameter")
    return Message(given.id or f"msg_{number}", given.role, _parts(given.role, texts))


def _parts(role: str, texts: Sequence[str]) -> list[InputText | OutputText]:
    return [OutputText(text) if role == "assistant" else InputText(text) for text in texts]
