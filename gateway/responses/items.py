"""The items of a conversation: what clients send, what they get, and the turns that a model is told. Pure.

Of reasoning the text is told, where there is one; summaries, and what is encrypted, are read over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeVar, Union

import msgspec

from gateway.members import MAX_SHOWN, bad, content_texts, decoded
from gateway.reply_schema import ContentLogprob
from gateway.responses.response_schema import GivenItem, Input
from wire.text_messages import ChatTurn, ToolCall

Status = Literal["in_progress", "completed", "incomplete"]

_INPUT: Final[msgspec.json.Decoder[str | list[GivenItem]]] = msgspec.json.Decoder(Input)
_ARGUMENTS: Final[msgspec.json.Decoder[str | None]] = msgspec.json.Decoder(Union[str, None])
TEXT_PARTS: Final = ("input_text", "output_text", "text")
REASONING_PARTS: Final = ("reasoning_text", "text")
REFERENCE: Final = "item_reference"
"""To an item of an earlier response; it may leave out that it is one."""

Value = TypeVar("Value")


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


class FunctionCall(msgspec.Struct, frozen=True, tag="function_call"):
    """A call of a tool."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Status = "completed"


class FunctionOutput(msgspec.Struct, frozen=True, tag="function_call_output"):
    """What a tool gave."""

    id: str
    call_id: str
    output: str
    status: Status = "completed"


class ReasoningText(msgspec.Struct, frozen=True, tag="reasoning_text"):
    """What a model has thought."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning"):
    """What a model has thought before it answered."""

    id: str
    summary: tuple[()] = ()
    content: list[ReasoningText] = []
    status: Status = "completed"


Item = Union[Message, FunctionCall, FunctionOutput, Reasoning]


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
        item, its_parts = _read(each, f"input[{at}]", f"{prefix}_{at}", parts)
        parts += its_parts
        items += [] if item is None else [item]
    if not items:
        raise bad("input", "'input' has nothing that a model can be told: send a message")
    return items


def turns_of(items: Iterable[Item], instructions: str | None) -> list[ChatTurn]:
    """Return the turns of a conversation; ``instructions`` are the system's, before all others. What an assistant
    thought, said and called in a row is one turn."""
    turns: list[ChatTurn | _Said] = [] if instructions is None else [ChatTurn("system", instructions)]
    for item in items:
        if isinstance(item, FunctionOutput):
            turns.append(ChatTurn("tool", item.output, tool_call_id=item.call_id))
        elif isinstance(item, Message) and item.role != "assistant":
            role = "system" if item.role == "developer" else item.role
            turns.append(ChatTurn(role, "\n".join(part.text for part in item.content)))
        else:
            said = turns[-1] if turns else None
            if not isinstance(said, _Said) or not said.goes_on_with(item):
                turns.append(said := _Said())
            said.add(item)
    return [each.turn() if isinstance(each, _Said) else each for each in turns]


class _Said:
    """What an assistant thought, said and called in a row, as it grows. It becomes a turn once: a conversation may have
    thousands of thoughts in a row, and each would be copied for each that follows."""

    def __init__(self) -> None:
        self._thoughts: list[str] = []
        self._content = ""
        self._calls: list[ToolCall] = []

    def goes_on_with(self, item: Message | FunctionCall | Reasoning) -> bool:
        """Whether an item belongs to this turn and begins none of its own."""
        return isinstance(item, FunctionCall) or not (self._content or self._calls)

    def add(self, item: Message | FunctionCall | Reasoning) -> None:
        """Add the next item."""
        if isinstance(item, FunctionCall):
            self._calls.append(ToolCall(item.call_id, item.name, item.arguments))
            return
        text = "\n".join(part.text for part in item.content)
        if isinstance(item, Message):
            self._content = text
        elif text or self._thoughts:
            self._thoughts.append(text)

    def turn(self) -> ChatTurn:
        """Return all of it."""
        return ChatTurn("assistant", self._content, None, self._calls, "", "\n".join(self._thoughts))


def _read(given: GivenItem, param: str, number: str, parts: int) -> tuple[Item | None, int]:
    """An item, and how many parts it has; None where there is nothing in it to tell a model."""
    if given.type == "reasoning":
        found = content_texts(given.content, f"{param}.content", parts, REASONING_PARTS) or []
        thoughts = list(map(ReasoningText, found))
        return Reasoning(given.id or f"rs_{number}", content=thoughts) if thoughts else None, len(found)
    if given.type == "function_call":
        call_id, name = _said(given.call_id, f"{param}.call_id"), _said(given.name, f"{param}.name")
        arguments = decoded(given.arguments, _ARGUMENTS, f"{param}.arguments") or ""
        return FunctionCall(given.id or f"fc_{number}", call_id, name, arguments), 0
    if given.type == "function_call_output":
        call_id = _said(given.call_id, f"{param}.call_id")
        texts = _said(content_texts(given.output, f"{param}.output", parts, TEXT_PARTS), f"{param}.output")
        return FunctionOutput(given.id or f"fco_{number}", call_id, "\n".join(texts)), len(texts)
    kind = given.type or (REFERENCE if given.role is None and given.id is not None else "message")
    if kind != "message":
        told = f"items of type '{kind[:MAX_SHOWN]}' are not supported: leave it out"
        raise bad(f"{param}.type", told, "unsupported_value")
    role = _said(given.role, f"{param}.role")
    texts = _said(content_texts(given.content, f"{param}.content", parts, TEXT_PARTS), f"{param}.content")
    return Message(given.id or f"msg_{number}", role, _parts(role, texts)), len(texts)


def _said(value: Value | None, param: str) -> Value:
    if value is None:
        raise bad(param, f"'{param}' is required", "missing_required_parameter")
    return value


def _parts(role: str, texts: Sequence[str]) -> list[InputText | OutputText]:
    return [OutputText(text) if role == "assistant" else InputText(text) for text in texts]
