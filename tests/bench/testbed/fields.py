"""The values of one table of a scenario, each checked before anything is made of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)(?::([^{}]*))?\}")
"""``{word}`` or ``{word:rest}``; any other braces are text."""

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class BadScenario(ValueError):
    """A scenario that cannot be; the message says file, table, key and what is allowed."""


def fill(text: str, value: Callable[[str, str], str | None]) -> str:
    """``text`` with ``value(word, rest)`` for each placeholder; None leaves it as it is."""

    def one(match: re.Match[str]) -> str:
        found = value(match[1], match[2] or "")
        return match[0] if found is None else found

    return PLACEHOLDER.sub(one, text)


class Table:
    """One table: every value is asked for by key, type and range, and ``done`` refuses what nobody asked for.

    Args:
        where: file and table, for messages.
        values: as TOML gives them; a number may also be a string that is one once it is filled.
        variables: what placeholders in strings stand for.
    """

    def __init__(self, where: str, values: object, variables: Mapping[str, str]) -> None:
        if not isinstance(values, dict):
            raise BadScenario(f"{where}: has to be a table")
        self.where = where
        self._values: dict[str, Any] = values
        self._variables = variables
        self._known: list[str] = []

    def bad(self, key: str, why: str) -> BadScenario:
        """The error for one of its keys."""
        return BadScenario(f"{self.where}: {key}: {why}")

    def table(self, key: str) -> Table:
        """A table in it; an empty one where there is none."""
        return Table(f"{self.where} [{key}]", self._take(key, {}), self._variables)

    def tables(self, key: str) -> dict[str, Table]:
        """The tables in a table, by name."""
        outer = self._take(key, {})
        if not isinstance(outer, dict):
            raise self.bad(key, "has to be a table of tables")
        for name in outer:
            if not NAME.fullmatch(name):
                raise self.bad(f"[{key}.{name}]", "a name is of a-z, 0-9 and single hyphens, and begins with a letter")
        return {name: Table(f"{self.where} [{key}.{name}]", each, self._variables) for name, each in outer.items()}

    def text(self, key: str, default: str | None = None, keep: bool = False) -> str:
        """A string, filled. ``keep`` leaves placeholders that are no variables for later; without, they are refused."""
        value = self._take(key, default)
        if not isinstance(value, str):
            raise self.bad(key, "has to be a string")
        return self._filled(key, value, keep)

    def texts(self, key: str) -> dict[str, str]:
        """A table of strings, filled, with placeholders kept for later; empty where there is none."""
        value = self._take(key, {})
        if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            raise self.bad(key, "has to be a table of strings")
        return {name: self._filled(key, each, True) for name, each in value.items()}

    def pair(self, key: str) -> tuple[str, str]:
        """Two names."""
        value = self._take(key, None)
        if not isinstance(value, list) or len(value) != 2 or not all(isinstance(each, str) for each in value):
            raise self.bad(key, "has to be a list of two names")
        return value[0], value[1]

    def flag(self, key: str) -> bool:
        """true or false; false where it is not there."""
        value = self._take(key, False)
        if not isinstance(value, bool):
            raise self.bad(key, "has to be true or false")
        return value

    def number(self, key: str, default: float | None, least: float, most: float) -> float:
        """A number from ``least`` to ``most``."""
        return self._number(key, self._take(key, default), least, most)

    def whole(self, key: str, default: int | None, least: int, most: int) -> int:
        """A whole number from ``least`` to ``most``."""
        value = self.number(key, default, least, most)
        if value != int(value):
            raise self.bad(key, "has to be a whole number")
        return int(value)

    def numbers(self, key: str, least: float, most: float) -> tuple[float, ...]:
        """A list of numbers, each from ``least`` to ``most``; () where there is none."""
        value = self._take(key, [])
        if not isinstance(value, list):
            raise self.bad(key, "has to be a list of numbers")
        return tuple(self._number(key, each, least, most) for each in value)

    def done(self) -> None:
        """Raises BadScenario where a key is there that nobody has asked for."""
        for key in self._values:
            if key not in self._known:
                raise self.bad(key, f"is not known here; allowed are {', '.join(sorted(self._known))}")

    def _take(self, key: str, default: Any) -> Any:
        self._known.append(key)
        value = self._values.get(key, default)
        if value is None:
            raise self.bad(key, "is missing")
        return value

    def _filled(self, key: str, value: str, keep: bool) -> str:
        filled = fill(value, lambda word, rest: None if rest else self._variables.get(word))
        left = None if keep else PLACEHOLDER.search(filled)
        if left:
            raise self.bad(key, f"nothing was given for {left[0]}")
        return filled

    def _number(self, key: str, value: Any, least: float, most: float) -> float:
        if isinstance(value, str):
            try:
                value = float(self._filled(key, value, False))
            except ValueError as error:
                raise error if isinstance(error, BadScenario) else self.bad(key, "has to be a number") from None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self.bad(key, f"has to be a number from {least:g} to {most:g}")
        return float(value)
