"""The tools that a request offers, and how its answer may call them: OpenAI's chats, and what all APIs share. Pure.

Whether a schema can be obeyed is the device's business. Here it is looked at how large it is, and that no name says
more than a name may: chat templates and grammars have it within their own text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, Union

import msgspec

from gateway.forms import schema_of
from gateway.members import MAX_SHOWN, bad, decoded
from gateway.openai_schema import NULL, Label
from wire.request_messages import Calling
from wire.text_messages import Tool

MAX_TOOLS: Final = 128
MAX_TOOLS_BYTES: Final = 2**18
"""Of all tools of a request; and of the choice among them, which names some."""

NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")

Mode = Literal["none", "auto", "required"]

_MODES: Final[tuple[Mode, ...]] = ("none", "auto", "required")
_TEXT: Final = msgspec.json.Decoder(str)
NOTHING: Final = (b"null", b"[]")


class ToolMembers(Protocol):
    """Members of a body that say which tools there are."""

    tools: msgspec.Raw
    tool_choice: msgspec.Raw
    parallel_tool_calls: bool | None


@dataclass(frozen=True)
class Tools:
    """The tools that a model is told, and how it may call them; None: not at all."""

    told: list[Tool] = field(default_factory=list)
    calling: Calling | None = None


class _Function(msgspec.Struct):
    name: Label
    description: str | None = None
    parameters: msgspec.Raw = NULL
    strict: bool | None = None


class _Tool(msgspec.Struct):
    type: Label
    function: msgspec.Raw = NULL


class _Named(msgspec.Struct):
    name: Label


class _Reference(msgspec.Struct):
    type: Label
    function: Union[_Named, None] = None


class _Allowed(msgspec.Struct):
    mode: Label
    tools: list[_Reference]


class _Choice(_Reference):
    allowed_tools: Union[_Allowed, None] = None


_TOOLS: Final = msgspec.json.Decoder(list[_Tool])
_FUNCTION: Final = msgspec.json.Decoder(_Function)
_CHOICE: Final = msgspec.json.Decoder(_Choice)


def tools_of(fields: ToolMembers) -> Tools:
    """Return the tools of a chat request.

    Raises:
        RequestError: they, or the choice among them, are not as they have to be, or too large.
    """
    tools: list[Tool] = []
    if bytes(fields.tools) not in NOTHING:
        listed = decoded(fields.tools, _TOOLS, "tools", MAX_TOOLS_BYTES)
        for at, each in enumerate(listed):
            check_kind(each.type, f"tools[{at}].type")
            given = decoded(each.function, _FUNCTION, f"tools[{at}].function")
            tools.append(
                tool_of(
                    given.name, given.description, given.parameters, given.strict, f"tools[{at}].function", "parameters"
                )
            )
    return chosen(tools, *_choice(fields.tool_choice), parallel=fields.parallel_tool_calls is not False)


def _choice(raw: msgspec.Raw) -> tuple[Mode, list[str] | None]:
    """How tools may be called, and which; None: all."""
    if (mode := word_in(raw)) is not None:
        return mode, None
    choice = decoded(raw, _CHOICE, "tool_choice", MAX_TOOLS_BYTES)
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        names = [each.function.name for each in choice.allowed_tools.tools if each.function is not None]
        return mode_of(choice.allowed_tools.mode, "tool_choice.allowed_tools.mode"), names
    check_kind(choice.type, "tool_choice.type")
    if choice.function is None:
        raise bad("tool_choice.function", "'tool_choice.function' is required", "missing_required_parameter")
    return "required", [choice.function.name]


# ---- what all APIs share ---------------------------------------------------------------------------------------------


def check_kind(kind: str, param: str) -> None:
    """Raises ``RequestError`` where a tool is no function: those that others run are not here."""
    if kind != "function":
        told = f"tools of type '{kind[:MAX_SHOWN]}' are not supported, only those of type 'function'"
        raise bad(param, told, "unsupported_value")


def word_in(raw: msgspec.Raw, default: Mode = "auto") -> Mode | None:
    """Return the mode that a choice is, ``default`` where it is null; None where it is no word."""
    data = bytes(raw)
    if data == b"null":
        return default
    return mode_of(decoded(raw, _TEXT, "tool_choice"), "tool_choice") if data.startswith(b'"') else None


def mode_of(word: str, param: str) -> Mode:
    """Return the mode that a word names; raises ``RequestError`` where it names none."""
    for mode in _MODES:
        if mode == word:
            return mode
    raise bad(param, f"'{param}' is 'none', 'auto', 'required', or an object that names a tool")


def tool_of(
    name: str, description: str | None, schema: msgspec.Raw, strict: bool | None, param: str, member: str
) -> Tool:
    """Return a tool.

    Args:
        param: where it is in the request. member: what its schema is called there.

    Raises:
        RequestError: its name is none, or its schema is none of an object, or too large.
    """
    if not NAME.fullmatch(name):
        raise bad(f"{param}.name", "a tool's name is 1 to 64 letters without accents, digits, '_' and '-'")
    at = f"{param}.{member}"
    if bytes(schema) == b"null":
        return Tool(name, description or "", "", bool(strict), at)
    text, found = schema_of(schema, at)
    if not isinstance(found, dict) or found.get("type", "object") != "object":
        raise bad(at, f"the arguments of a tool are an object: '{at}' has the 'type' 'object'")
    return Tool(name, description or "", text, bool(strict), at)


def chosen(tools: Sequence[Tool], mode: Mode, names: Sequence[str] | None, *, parallel: bool) -> Tools:
    """Return what a model is told of these tools.

    Args:
        names: the only ones that may be called; None: all may. A single one that is required is called once.

    Raises:
        RequestError: there are too many, two of one name, or a name that is none of theirs.
    """
    if len(tools) > MAX_TOOLS:
        raise bad("tools", f"there are {len(tools)} tools, and may be {MAX_TOOLS}: send fewer")
    known: dict[str, Tool] = {}
    for tool in tools:
        if known.setdefault(tool.name, tool) is not tool:
            raise bad(tool.param.rpartition(".")[0] + ".name", f"two tools have the name '{tool.name}'")
    for name in names or ():
        if name not in known:
            raise bad("tool_choice", f"'tool_choice' names '{name[:MAX_SHOWN]}', which is none of 'tools'")
    if names is not None and not names:
        raise bad("tool_choice", "'tool_choice' names no tool")
    if not tools:
        if mode == "required":
            raise bad("tool_choice", "'tool_choice' needs 'tools': send them too, or leave it out")
        return Tools()
    if mode == "none":
        return Tools()
    if mode == "required" and names is not None and len(set(names)) == 1:
        return Tools(list(tools), Calling(forced=True, name=names[0], parallel=False))
    callable_names = set(known if names is None else names)
    told = [tool for tool in tools if tool.name in callable_names]
    return Tools(told, Calling(forced=mode == "required", parallel=parallel))
