"""The tables of a scenario, read into their types once placeholders are filled."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)(?::([^{}]*))?\}")
"""``{word}`` or ``{word:rest}``; any other braces are text."""

Kind = TypeVar("Kind", bound=msgspec.Struct)


class BadScenario(ValueError):
    """A scenario that cannot be; the message says file, table, key and what is allowed."""


def fill(text: str, value: Callable[[str, str], str | None]) -> str:
    """``text`` with ``value(word, rest)`` for each placeholder; None leaves it as it is."""

    def one(match: re.Match[str]) -> str:
        found = value(match[1], match[2] or "")
        return match[0] if found is None else found

    return PLACEHOLDER.sub(one, text)


def read(where: str, values: object, kind: type[Kind], variables: Mapping[str, str]) -> Kind:
    """A table as its type.

    Args:
        where: file and table, for messages.
        values: as TOML gives them; a number may also be a string that is one once it is filled.
        kind: placeholders that are no variables stay in what its ``LATER`` names, for later.
        variables: what placeholders in strings stand for.

    Raises:
        BadScenario: a key is unknown, missing, of another type or out of range, or a placeholder stands for nothing.
    """

    def filled(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(key, each) for name, each in value.items()}
        if not isinstance(value, str):
            return value
        text = fill(value, lambda word, rest: None if rest else variables.get(word))
        left = PLACEHOLDER.search(text)
        if left and key not in getattr(kind, "LATER", ()):
            raise BadScenario(f"{where}: {key}: nothing was given for {left[0]}")
        return text

    try:
        if isinstance(values, dict):
            values = {key: filled(key, each) for key, each in values.items()}
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        said, _, at = str(error).partition(" - at `$")
        raise BadScenario(f"{where}: {at.strip('.`')}{': ' * bool(at)}{said}") from None
