"""The tools of a request of /v1/messages, as Anthropic has them. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.members import MAX_SHOWN, bad, decoded
from gateway.messages.message_schema import MessagesBody
from gateway.openai_schema import NULL, Label
from gateway.tools import MAX_TOOLS_BYTES, NOTHING, Mode, Tools, chosen, tool_of
from wire.text_messages import Tool


class _Tool(msgspec.Struct):
    name: Label
    type: Label | None = None
    description: str | None = None
    input_schema: msgspec.Raw = NULL
    strict: bool | None = None


class _Choice(msgspec.Struct):
    type: Label
    name: Label | None = None
    disable_parallel_tool_use: bool | None = None


_TOOLS: Final = msgspec.json.Decoder(list[_Tool])
_CHOICE: Final = msgspec.json.Decoder(_Choice)
_MODES: Final[dict[str, Mode]] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


def message_tools(fields: MessagesBody) -> Tools:
    """Return the tools of a request.

    Raises:
        RequestError: they, or the choice among them, are not as they have to be, or too large.
    """
    tools: list[Tool] = []
    if bytes(fields.tools) not in NOTHING:
        listed = decoded(fields.tools, _TOOLS, "tools", MAX_TOOLS_BYTES)
        for at, each in enumerate(listed):
            if each.type not in (None, "custom"):
                told = f"tools of type '{each.type[:MAX_SHOWN]}' are not supported, only your own ('custom')"
                raise bad(f"tools[{at}].type", told, "unsupported_value")
            tools.append(
                tool_of(each.name, each.description, each.input_schema, each.strict, f"tools[{at}]", "input_schema")
            )
    if bytes(fields.tool_choice) == b"null":
        return chosen(tools, "auto", None, parallel=True)
    choice = decoded(fields.tool_choice, _CHOICE, "tool_choice", MAX_TOOLS_BYTES)
    if choice.type not in _MODES:
        raise bad("tool_choice.type", "'tool_choice.type' is 'auto', 'any', 'tool' or 'none'")
    if choice.type == "tool" and choice.name is None:
        raise bad("tool_choice.name", "'tool_choice.name' is required", "missing_required_parameter")
    names = [choice.name] if choice.type == "tool" and choice.name is not None else None
    return chosen(tools, _MODES[choice.type], names, parallel=not choice.disable_parallel_tool_use)
