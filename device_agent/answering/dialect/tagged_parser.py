"""Calls whose arguments stand one by one between tags. Pure.

A call is told as soon as its name is there. Of an argument that is a text each piece is told as it comes, any other one
when it is complete, as the JSON that it is by the tool's schema. A value goes as far as its closing tag, and of an
argument that comes twice the first value counts. What stands between arguments and is none says nothing. See
``CallsInText`` for the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final

from device_agent.answering.dialect.argument_kinds import ALL, TEXT, ArgumentKinds, as_json
from device_agent.answering.dialect.call_formats import CallFormat, Tags
from device_agent.answering.dialect.calls_in_text import MAX_HEAD, MOST_CALLS, CallsInText
from device_agent.answering.dialect.pieces import Argued, Piece
from device_agent.answering.dialect.thoughts import cut_off

MAX_KEY: Final = 128
"""Characters of an argument's name."""


class TaggedParser(CallsInText):
    """The calls in one answer; see ``CallsInText``.

    Args:
        tools: the schema of each tool's arguments, as text, by the tool's name.
    """

    def __init__(
        self, format: CallFormat, tools: Mapping[str, str], new_id: Callable[[], str], most: int = MOST_CALLS
    ) -> None:
        super().__init__(format, tools.keys(), new_id, most)
        assert format.tags is not None
        self._tools = tools
        self._tags = format.tags
        self._key = key_pattern(format.tags)
        self._kinds = ArgumentKinds("")
        self._told: set[str] = set()
        """The arguments of the call that have begun."""
        self._argument, self._allowed = "", ALL
        self._again = False
        """The argument has been told already."""
        self._padding = False
        """The line end before a value is still to come."""
        self._looked = 0
        self._closed = 0

    def _before(self) -> bool:
        assert self._format.head is not None
        text = self._lead.lstrip() + self._rest
        found = self._format.head.match(text)
        if found is None:
            return self._no_call() if self._final or len(text) >= MAX_HEAD else False
        name = found.group(1)
        if name not in self._tools:
            return self._no_call()
        self._out += [self._new_call(name), Argued("{")]
        self._kinds, self._told = ArgumentKinds(self._tools[name]), set()
        self._rest, self._step = text[found.end() :], self._between
        return True

    def _between(self) -> bool:
        """Between arguments, or behind the last."""
        rest = self._rest = self._rest.lstrip()
        tags, openers = self._tags, self._format.openers
        if (key := self._key.match(rest)) is not None:
            return self._begin(key, rest[key.end() :])
        for mark in (*tags.ends, *openers):  # A call ends where the next one begins, too.
            if rest.startswith(mark):
                self._rest = rest if mark in openers else rest[len(mark) :]
                self._out.append(Argued("}"))
                self.complete += 1
                self._closed, self._step = 0, self._after
                return True
        if not self._final and (
            any(mark.startswith(rest) for mark in (tags.key, *tags.ends, *openers))
            or (rest.startswith(tags.key) and len(rest) < MAX_HEAD)
        ):
            return False
        at = rest.find("<", 1)
        self._rest = rest[at:] if at >= 0 else ""
        return bool(self._rest)

    def _closing(self) -> list[Piece]:
        if self._step != self._between:
            return []
        self.complete += 1
        self._step = self._text
        return [Argued("}")]

    def _begin(self, key: re.Match[str], rest: str) -> bool:
        self._argument, self._rest, self._looked = key.group(1).strip(), rest, 0
        self._again = self._argument in self._told
        self._allowed = self._kinds.of(self._argument)
        if self._tags.json:  # What it says of a value counts where the schema lets it be both.
            said = self._allowed - TEXT if key.group("json") else self._allowed & TEXT
            self._allowed = said or self._allowed
        self._padding = self._tags.padded
        self._step = self._whole
        if self._allowed == TEXT:
            self._tell(f'{self._named()}"')
            self._step = self._piece
        return True

    def _named(self) -> str:
        """What stands before an argument's value."""
        before = ", " if self._told else ""
        self._told.add(self._argument)
        return f"{before}{json.dumps(self._argument, ensure_ascii=False)}: "

    def _piece(self) -> bool:
        """More of a text."""
        if self._padding:
            if not self._rest:
                return False
            self._rest, self._padding = self._rest.removeprefix("\n"), False
        rest, close = self._rest, self._tags.close
        at = rest.find(close)
        if at >= 0:
            self._tell(f'{_quoted(self._bare(rest[:at]))}"')
            self._rest, self._step = rest[at + len(close) :], self._between
            return True
        keep = cut_off(rest, close)
        keep += self._tags.padded and rest[: len(rest) - keep].endswith("\n")
        self._tell(_quoted(rest[: len(rest) - keep]))
        self._rest = rest[len(rest) - keep :]
        return False

    def _whole(self) -> bool:
        """A value that has to be complete to be told."""
        rest, close = self._rest, self._tags.close
        at = rest.find(close, max(0, self._looked - len(close)))
        self._looked = len(rest)
        if at < 0:
            return False
        value = rest[:at].removeprefix("\n") if self._padding else rest[:at]
        self._rest, self._step = rest[at + len(close) :], self._between
        if not self._again:
            self._tell(self._named() + as_json(self._bare(value), self._allowed))
        return True

    def _bare(self, value: str) -> str:
        return value.removesuffix("\n") if self._tags.padded else value

    def _tell(self, text: str) -> None:
        if text and not self._again:
            self._out.append(Argued(text))

    def _after(self) -> bool:
        """Behind a call."""
        self._behind = True
        if self._closed < len(self._format.closers):
            self._rest = self._rest.lstrip()
            if not self._dropped(self._format.closers[self._closed]):
                return False
            self._closed += 1
            return True
        self._step = self._text
        return True


def key_pattern(tags: Tags) -> re.Pattern[str]:
    """What an argument begins with, up to its value, the name as a group, and what says that it is JSON as another."""
    between = r"\s{0,16}".join(map(re.escape, tags.value.removesuffix("\n").split("\n")))
    if tags.json:
        between = f"(?:{between}|(?P<json>{re.escape(tags.json)}))"
    return re.compile(rf"{re.escape(tags.key)}([^<>\n]{{1,{MAX_KEY}}}){between}")


def _quoted(text: str) -> str:
    """A part of a text as it stands in JSON, without the signs around it."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
