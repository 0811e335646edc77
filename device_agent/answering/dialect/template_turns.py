"""A conversation as chat templates want it, with tools, calls and thoughts. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any, Final

from device_agent.answering.dialect.call_formats import CallFormat
from device_agent.answering.dialect.dialect import SHORT_ID, Dialect
from device_agent.answering.dialect.written_calls import written_calls
from wire.text_messages import ChatTurn, Tool, ToolCall

_SHORT: Final = re.compile(rf"[A-Za-z0-9]{{{SHORT_ID}}}")

RESULT: Final = "<tool_response>\n{}\n</tool_response>"
"""What a tool gave, where a chat template does not know how to say it."""


def template_turns(turns: Sequence[ChatTurn], dialect: Dialect, *, parsed: bool = True) -> list[dict[str, Any]]:
    """Return the messages that a chat template is given.

    Args:
        parsed: arguments of calls are objects, as nearly all templates want them, not the texts that were sent. What is
            no JSON object stays a text.
    """
    told: list[dict[str, Any]] = []
    ids = _Ids(dialect.format)
    gave: list[str] = []
    """What tools in a row gave."""
    for at, turn in enumerate(turns):
        message: dict[str, Any] = {"role": turn.role, "content": turn.content}
        message |= {"name": turn.name} if turn.name else {}
        message |= {"reasoning_content": turn.reasoning} if turn.reasoning else {}
        if not dialect.tells and turn.role == "tool":  # Some templates refuse two messages of a user in a row.
            gave.append(RESULT.format(turn.content))
            if at + 1 == len(turns) or turns[at + 1].role != "tool":  # Joined once: there may be thousands in a row.
                told.append({"role": "user", "content": "\n".join(gave)})
                gave = []
            continue
        if not dialect.tells and turn.tool_calls:
            told.append({"role": turn.role, "content": _as_text(turn, dialect.format)})
            continue
        if turn.tool_call_id:
            message["tool_call_id"] = ids.of(turn.tool_call_id)
        calls = [_call(call, ids.of_call(call), parsed) for call in turn.tool_calls]
        if not calls:
            told.append(message)
        elif dialect.format.single:  # Its templates refuse more than one.
            told.append({**message, "tool_calls": calls[:1]})
            told += ({"role": turn.role, "content": "", "tool_calls": [call]} for call in calls[1:])
        else:
            told.append({**message, "tool_calls": calls})
    return told


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """Return the tools that a chat template is told; None where there are none."""
    return [_tool(tool) for tool in tools] or None


def _tool(tool: Tool) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    schema = {"parameters": json.loads(tool.parameters)} if tool.parameters else {}
    return {"type": "function", "function": {"name": tool.name, **described, **schema}}


def _call(call: ToolCall, id: str, parsed: bool) -> dict[str, Any]:
    arguments = _object(call.arguments) if parsed else call.arguments
    function = {"name": call.name, "arguments": arguments}
    return {"id": id, "type": "function", "function": function}


def _object(text: str) -> Any:
    try:
        found = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text


class _Ids:
    """The ids of the calls of one conversation as templates accept them: the same for a call and for what it gave."""

    def __init__(self, format: CallFormat) -> None:
        self._format = format
        self._numbered: dict[str, str] = {}
        self._calls = 0

    def of_call(self, call: ToolCall) -> str:
        """That of the next call."""
        if self._format.numbered:
            self._numbered[call.id] = self._format.id_of(call.name, self._calls)
            self._calls += 1
        return self.of(call.id)

    def of(self, id: str) -> str:
        """That of a call which has this one elsewhere."""
        if not self._format.short_ids or not id or _SHORT.fullmatch(id):
            return self._numbered.get(id, id)
        return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:SHORT_ID]


def _as_text(turn: ChatTurn, format: CallFormat) -> str:
    """What a turn with calls says, for a template that knows no calls: these as they are written here."""
    calls = written_calls(format, ((call.name, call.arguments) for call in turn.tool_calls))
    return "\n".join([*([turn.content] if turn.content else []), calls])
