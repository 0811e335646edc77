"""What a response repeats of its request as it came, whatever members it has. Pure.

It is kept for as long as the request waits and is answered, and is encoded several times: so how many bytes it may have
is looked at before it becomes objects, and how deep it goes before anything has to follow it down.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.forms import MAX_DEPTH, MAX_FORM_BYTES, depth_of
from gateway.members import bad, decoded
from gateway.tools import MAX_TOOLS_BYTES, NOTHING

MAX_FORMAT_BYTES: Final = 2 * MAX_FORM_BYTES
"""Of ``text.format``: a schema, its name and what it is for."""

MAX_REPEATED_DEPTH: Final = MAX_DEPTH + 8
"""Of objects and lists: as deep as a schema may be, and what is around one."""

TEXT: Final = {"type": "text"}

_ANY: Final = msgspec.json.Decoder()


def repeated(raw: msgspec.Raw, param: str, most_bytes: int) -> Any:
    """Return a member as it is.

    Raises:
        RequestError: it has more bytes, is too deep, or is no JSON.
    """
    found = decoded(raw, _ANY, param, most_bytes)
    if depth_of(bytes(raw)) > MAX_REPEATED_DEPTH:
        raise bad(param, f"'{param}' is nested too deeply: send {MAX_REPEATED_DEPTH} levels at most")
    return found


def repeated_format(raw: msgspec.Raw) -> Any:
    """Return the format of the answer's text; raises like ``repeated``, here and below."""
    return repeated(raw, "text.format", MAX_FORMAT_BYTES) or TEXT


def repeated_tools(raw: msgspec.Raw) -> list[dict[str, Any]]:
    """Return the tools, with the members that OpenAI always has."""
    if bytes(raw) in NOTHING:
        return []
    usual = {"description": None, "parameters": None, "strict": None}
    return [usual | tool for tool in repeated(raw, "tools", MAX_TOOLS_BYTES)]


def repeated_choice(raw: msgspec.Raw) -> Any:
    """Return the choice among the tools."""
    return "auto" if bytes(raw) == b"null" else repeated(raw, "tool_choice", MAX_TOOLS_BYTES)
