"""Calls as a model writes them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable

from device_agent.answering.dialect.call_formats import CallFormat, Tags


def written_calls(format: CallFormat, calls: Iterable[tuple[str, str]]) -> str:
    """Return calls, each by its tool's name and its arguments as JSON, as an answer in this format has them. Arguments
    that are no JSON object are put where they would be, as they are; where calls are numbered they are from 0 on."""
    told = []
    for number, (name, arguments) in enumerate(calls):
        named = f"{name}{format.numbered}{number}" if format.numbered else name
        told.append(f"{format.lead}{named}{format.middle}{_arguments(format, arguments)}{format.end}")
    return f"{format.first}{format.between.join(told)}{format.last}"


def _arguments(format: CallFormat, arguments: str) -> str:
    if format.tags is None:
        return arguments or "{}"
    try:
        found = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    if not isinstance(found, dict):
        return arguments
    return "".join(_argument(format.tags, name, value) for name, value in found.items())


def _argument(tags: Tags, name: str, value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    between = tags.value if isinstance(value, str) or not tags.json else tags.json
    pad = "\n" if tags.padded else ""
    return f"{tags.key}{name}{between}{text}{pad}{tags.close}{tags.after}"
