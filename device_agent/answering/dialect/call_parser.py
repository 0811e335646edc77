"""Calls of tools in an answer's text, told apart as they come. Pure.

What comes of a text does not depend on how it was cut. A call is told from the ``{`` of its arguments on, where what is
before it is in the usual order and names a tool that there is; one that is written in another order is told when it is
complete. Whatever is no call stays text, its tags with it. Of a call that was told the arguments end where their
brackets do, or with the answer. Blanks beside calls are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Any, Final

from device_agent.answering.dialect.call_formats import CallFormat
from device_agent.answering.dialect.json_extent import Extent
from device_agent.answering.dialect.pieces import Argued, Begun, Piece, Said, joined
from device_agent.answering.dialect.thoughts import held

MOST_CALLS: Final = 128
"""In one answer, which ends with the last of them."""

MAX_HEAD: Final = 256
"""Characters before the arguments of a call whose name stands outside of the JSON."""

_B: Final = r"\s{0,16}"
_NAME: Final = r"([A-Za-z0-9_-]{1,64})"
_HEAD: Final = re.compile(
    rf'\{{{_B}(?:"type"{_B}:{_B}"function"{_B},{_B})?"name"{_B}:{_B}"{_NAME}"{_B},{_B}"(?:arguments|parameters)"{_B}:{_B}\{{'
)
_NAMED: Final = re.compile(rf"{_NAME}{_B}(?:\[CALL_ID\]{_B}\w{{1,64}}{_B})?(?:\[ARGS\])?{_B}\{{")
_FIRST: Final = tuple(f'"{each}"' for each in ("name", "arguments", "parameters", "id", "type", "function"))
"""Members that a call may begin with."""
_TOO_MANY: Final = re.compile(r"[\s}\]]*")
"""Brackets and blanks behind a call: one too many is a common mistake."""


class CallParser:
    """The calls in one answer.

    Args:
        names: of the tools that there are.
        new_id: makes the id of a call.
        most: calls of the answer.

    Attributes:
        begun: calls that were told. complete: those whose arguments are complete.
    """

    def __init__(
        self, format: CallFormat, names: Collection[str], new_id: Callable[[], str], most: int = MOST_CALLS
    ) -> None:
        self.begun = self.complete = 0
        self._format = format
        self._names = names
        self._new_id = new_id
        self._most = most
        self._rest = ""
        """What no step has taken yet."""
        self._lead = self._raw = ""
        """The beginning of what may be calls, and what of them was taken, should they be none."""
        self._listed = False
        self._fresh = format.bare
        self._behind = False
        """Nothing but blanks has come since a call."""
        self._extent = Extent()
        self._looked = 0
        self._final = False
        self._out: list[Piece] = []
        self._step: Callable[[], bool] = self._text
        self._then: Callable[[], bool] = self._after

    @property
    def over(self) -> bool:
        """Whether there may be no further call: what follows is dropped."""
        return self.complete >= self._most

    def feed(self, text: str) -> list[Piece]:
        """More text in; what is known of it now."""
        self._rest += text
        return self._taken()

    def end(self) -> list[Piece]:
        """What was held back, when nothing follows."""
        self._final = True
        return self._taken()

    def _taken(self) -> list[Piece]:
        while not self.over and self._step():
            pass
        if self.over:
            self._rest = ""
        out, self._out = self._out, []
        return joined(out)

    # Each step takes what it can of the rest, and says whether another one may go on; if not, more has to come.

    def _text(self) -> bool:
        text, opener = self._rest, self._format.opener
        if self._fresh:
            bare = text.lstrip()
            if not bare and not self._final:
                return False
            self._fresh = False
            if bare.startswith("{"):
                return self._opened(text[: len(text) - len(bare)], bare)
        at = text.find(opener)
        if at >= 0:
            said = text[:at].rstrip()
            self._say(said)
            return self._opened(text[len(said) : at + len(opener)], text[at + len(opener) :])
        keep = 0 if self._final else held(text, opener)
        self._say(text[: len(text) - keep])
        self._rest = text[len(text) - keep :]
        return False

    def _opened(self, lead: str, rest: str) -> bool:
        self._lead, self._raw, self._rest, self._step = lead, "", rest, self._before
        return True

    def _before(self) -> bool:
        """Where a call has to begin."""
        rest = self._rest.lstrip()
        if not rest:
            return self._no_call() if self._final else False
        self._raw += self._rest[: len(self._rest) - len(rest)]
        self._rest, format = rest, self._format
        if rest.startswith("[") and format.lists and not self._listed:
            self._listed, self._raw, self._rest = True, self._raw + "[", rest[1:]
        elif rest.startswith("{"):
            self._extent, self._looked, self._step = Extent(), 0, self._object
        elif format.named and not self._listed:
            self._step = self._named
        else:
            return self._no_call()
        return True

    def _named(self) -> bool:
        """A name, and the arguments behind it."""
        found = _NAMED.match(self._rest)
        if found is None:
            return self._no_call() if self._final or len(self._rest) >= MAX_HEAD else False
        return self._begin(found, self._after)

    def _object(self) -> bool:
        """An object that may be a call."""
        text, closer = self._rest, self._format.closer
        first = text[1:].lstrip()[:MAX_HEAD]
        if not any(first.startswith(each) or each.startswith(first) for each in _FIRST):
            return self._no_call()
        if (head := _HEAD.match(text)) is not None:
            return self._begin(head, self._tail)
        end = self._extent.feed(text[self._looked :])
        end = None if end is None else self._looked + end
        self._looked = len(text)
        if (closer and closer in text[:end]) or (end is None and self._final):
            return self._no_call()
        if end is None:
            return False
        call = _call_in(text[:end])
        if call is None or call[0] not in self._names:
            return self._no_call()
        self._out += [self._new_call(call[0]), Argued(call[1])]
        self.complete += 1
        self._rest, self._step = text[end:], self._after
        return True

    def _begin(self, head: re.Match[str], then: Callable[[], bool]) -> bool:
        if head.group(1) not in self._names:
            return self._no_call()
        self._out.append(self._new_call(head.group(1)))
        self._rest, self._extent = self._rest[head.end() - 1 :], Extent()
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
        self._step = self._after
        if self._rest.startswith("}"):
            self._rest = self._rest[1:]
        elif self._rest.startswith(","):  # Members that say nothing more.
            self._extent, self._step = Extent(depth=1), self._members
        return True

    def _members(self) -> bool:
        end = self._extent.feed(self._rest)
        self._rest = "" if end is None else self._rest[end:]
        if end is not None:
            self._step = self._after
        return end is not None

    def _after(self) -> bool:
        """Behind a call."""
        format, self._behind = self._format, True
        if format.closer:
            self._rest = _TOO_MANY.sub("", self._rest, count=1)
            if len(self._rest) < len(format.closer) and format.closer.startswith(self._rest):
                return False
            self._rest = self._rest.removeprefix(format.closer)
        else:
            self._rest = self._rest.lstrip()
            if not self._rest:
                return False
            if self._rest.startswith(format.separator) and (self._listed or not format.lists):
                self._lead, self._raw, self._step = "", format.separator, self._before
                self._rest = self._rest.removeprefix(format.separator)
                return True
            self._rest = self._rest.removeprefix("]") if self._listed else self._rest
        self._listed, self._step = False, self._text
        return True

    def _no_call(self) -> bool:
        """What was taken for a call is text, and whatever else may be in it."""
        self._say(self._lead)
        self._rest, self._raw, self._listed, self._step = self._raw + self._rest, "", False, self._text
        return True

    def _say(self, text: str) -> None:
        text = text.lstrip() if self._behind else text
        if text:
            self._behind = False
            self._out.append(Said(text))

    def _new_call(self, name: str) -> Begun:
        self.begun += 1
        return Begun(self._new_id(), name)


def _call_in(text: str) -> tuple[str, str] | None:
    """The name and the arguments, as JSON, of a call in any order; None where it is none."""
    try:
        call: Any = json.loads(text, parse_constant=_refuse)
        call = call["function"] if isinstance(call.get("function"), dict) else call
        name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
        if isinstance(arguments, str):  # JSON within JSON.
            arguments = json.loads(arguments, parse_constant=_refuse) if arguments.strip() else {}
        arguments = {} if arguments is None else arguments
        return (name, json.dumps(arguments)) if isinstance(name, str) and isinstance(arguments, dict) else None
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(constant)
