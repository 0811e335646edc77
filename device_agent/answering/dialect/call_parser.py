"""Calls whose arguments are a JSON object. Pure.

A call is told from the ``{`` of its arguments on; one that is written in another order is told when it is complete. Its
arguments end where their brackets do. See ``CallsInText`` for the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Any, Final

from device_agent.answering.dialect.call_formats import GAP, NAME, CallFormat
from device_agent.answering.dialect.calls_in_text import MAX_HEAD, MOST_CALLS, CallsInText
from device_agent.answering.dialect.json_extent import Extent
from device_agent.answering.dialect.pieces import Argued

_HEAD: Final = re.compile(
    rf'\{{{GAP}(?:"type"{GAP}:{GAP}"function"{GAP},{GAP})?"name"{GAP}:{GAP}"{NAME}"{GAP},{GAP}"(?:arguments|parameters)"{GAP}:{GAP}(?=\{{)'
)
_FIRST: Final = tuple(f'"{each}"' for each in ("name", "arguments", "parameters", "id", "type", "function"))
"""Members that a call may begin with."""
_TOO_MANY: Final = re.compile(r"[\s}\]]*")
"""Brackets and blanks behind a call: one too many is a common mistake."""


class CallParser(CallsInText):
    """The calls in one answer; see ``CallsInText``."""

    def __init__(
        self, format: CallFormat, names: Collection[str], new_id: Callable[[], str], most: int = MOST_CALLS
    ) -> None:
        super().__init__(format, names, new_id, most)
        self._listed = False
        self._extent = Extent()
        self._looked = 0
        self._closed = 0
        """Of what may stand behind a call, how many have come or do not."""
        self._then: Callable[[], bool] = self._after

    def _before(self) -> bool:
        rest = self._rest.lstrip()
        if not rest:
            return self._no_call() if self._final else False
        self._raw += self._rest[: len(self._rest) - len(rest)]
        self._rest, format = rest, self._format
        if rest.startswith("[") and format.lists and not self._listed:
            self._listed, self._raw, self._rest = True, self._raw + "[", rest[1:]
        elif rest.startswith("{"):
            self._extent, self._looked, self._step = Extent(), 0, self._object
        elif format.head is not None and not self._listed:
            self._step = self._named
        else:
            return self._no_call()
        return True

    def _named(self) -> bool:
        """A name, and the arguments behind it."""
        assert self._format.head is not None
        found = self._format.head.match(self._rest)
        if found is None:
            return self._no_call() if self._final or len(self._rest) >= MAX_HEAD else False
        return self._begin(found, self._ended)

    def _object(self) -> bool:
        """An object that may be a call."""
        text, closers = self._rest, self._format.closers
        first = text[1:].lstrip()[:MAX_HEAD]
        if not any(first.startswith(each) or each.startswith(first) for each in _FIRST):
            return self._no_call()
        if (head := _HEAD.match(text)) is not None:
            return self._begin(head, self._tail)
        end = self._extent.feed(text[self._looked :])
        end = None if end is None else self._looked + end
        self._looked = len(text)
        if any(closer in text[:end] for closer in closers) or (end is None and self._final):
            return self._no_call()
        if end is None:
            return False
        call = _call_in(text[:end])
        if call is None or call[0] not in self._names:
            return self._no_call()
        self._out += [self._new_call(call[0]), Argued(call[1])]
        self.complete += 1
        self._rest = text[end:]
        return self._ended()

    def _begin(self, head: re.Match[str], then: Callable[[], bool]) -> bool:
        if head.group(1) not in self._names:
            return self._no_call()
        self._out.append(self._new_call(head.group(1)))
        self._rest, self._extent = self._rest[head.end() :], Extent()
        self._then = then
        self._step = self._arguments
        return True

    def _arguments(self) -> bool:
        end = self._extent.feed(self._rest)
        if self._rest:
            self._out.append(Argued(self._rest[:end]))
        self._rest = "" if end is None else self._rest[end:]
        if end is not None:
            self.complete += 1
            self._step = self._then
        return end is not None

    def _tail(self) -> bool:
        """The end of the object that a call is."""
        self._rest = self._rest.lstrip()
        if not self._rest:
            return False
        if self._rest.startswith(","):  # Members that say nothing more.
            self._extent, self._step = Extent(depth=1), self._members
            return True
        self._rest = self._rest.removeprefix("}")
        return self._ended()

    def _members(self) -> bool:
        end = self._extent.feed(self._rest)
        self._rest = "" if end is None else self._rest[end:]
        return end is not None and self._ended()

    def _ended(self) -> bool:
        """A call is through."""
        self._closed, self._step = 0, self._after
        return True

    def _after(self) -> bool:
        """Behind a call."""
        format, self._behind = self._format, True
        if self._closed < len(format.closers):
            self._rest = _TOO_MANY.sub("", self._rest, count=1)
            if not self._dropped(format.closers[self._closed]):
                return False
            self._closed += 1
            return True
        if not format.closers:
            self._rest = self._rest.lstrip()
            if not self._rest:
                return False
            if self._rest.startswith(format.separator) and (self._listed or not format.lists):
                self._lead, self._raw, self._step = "", format.separator, self._before
                self._rest = self._rest.removeprefix(format.separator)
                return True
            if format.bare and self._rest.startswith("{"):  # Some write one call a line, and nothing between.
                self._lead, self._raw, self._step = "", "", self._before
                return True
            self._rest = self._rest.removeprefix("]") if self._listed else self._rest
        self._listed, self._step = False, self._text
        return True

    def _no_call(self) -> bool:
        self._listed = False
        return super()._no_call()


def _call_in(text: str) -> tuple[str, str] | None:
    """The name and the arguments, as JSON, of a call in any order; None where it is none."""
    try:
        call: Any = json.loads(text, parse_constant=_refuse)
        call = call["function"] if isinstance(call.get("function"), dict) else call
        name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
        if isinstance(arguments, str):  # JSON within JSON.
            arguments = json.loads(arguments, parse_constant=_refuse) if arguments.strip() else {}
        arguments = {} if arguments is None else arguments
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        return name, json.dumps(arguments, allow_nan=False)  # A number that is too large was read as none.
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(constant)
