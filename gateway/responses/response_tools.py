"""The tools of a request for a response: a chat's, not wrapped up. Pure."""

from __future__ import annotations

from typing import Final, Union

import msgspec

from gateway.members import bad, decoded
from gateway.openai_schema import NULL, Label
from gateway.tools import (
    MAX_TOOLS_BYTES,
    NOTHING,
    Mode,
    ToolMembers,
    Tools,
    check_kind,
    chosen,
    mode_of,
    tool_of,
    word_in,
)
from wire.text_messages import Tool


class _Tool(msgspec.Struct):
    type: Label
    name: Label = ""
    description: str | None = None
    parameters: msgspec.Raw = NULL
    strict: bool | None = None


class _Reference(msgspec.Struct):
    type: Label
    name: Label | None = None


class _Choice(_Reference):
    mode: Label = ""
    tools: Union[list[_Reference], None] = None


_TOOLS: Final = msgspec.json.Decoder(list[_Tool])
_CHOICE: Final = msgspec.json.Decoder(_Choice)


def response_tools(fields: ToolMembers) -> Tools:
    """Return the tools of a request.

    Raises:
        RequestError: they, or the choice among them, are not as they have to be, or too large.
    """
    tools: list[Tool] = []
    if bytes(fields.tools) not in NOTHING:
        listed = decoded(fields.tools, _TOOLS, "tools", MAX_TOOLS_BYTES)
        for at, each in enumerate(listed):
            check_kind(each.type, f"tools[{at}].type")
            tools.append(
                tool_of(each.name, each.description, each.parameters, each.strict, f"tools[{at}]", "parameters")
            )
    return chosen(tools, *_choice(fields.tool_choice), parallel=fields.parallel_tool_calls is not False)


def _choice(raw: msgspec.Raw) -> tuple[Mode, list[str] | None]:
    if (mode := word_in(raw)) is not None:
        return mode, None
    choice = decoded(raw, _CHOICE, "tool_choice", MAX_TOOLS_BYTES)
    if choice.type == "allowed_tools":
        names = [each.name for each in choice.tools or () if each.name is not None]
        return mode_of(choice.mode, "tool_choice.mode"), names
    check_kind(choice.type, "tool_choice.type")
    if choice.name is None:
        raise bad("tool_choice.name", "'tool_choice.name' is required", "missing_required_parameter")
    return "required", [choice.name]
