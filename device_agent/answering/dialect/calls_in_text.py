"""Calls of tools in an answer's text, told apart as they come: what all ways of writing them have in common. Pure.

What comes of a text does not depend on how it was cut. A call is told as soon as its name and the beginning of its
arguments are there, in the usual order, and there is such a tool. Whatever is no call stays text, its tags with it. Of
a call that was told the arguments end where the call does, or with the answer. Blanks beside calls are left out.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import Final

from device_agent.answering.dialect.call_formats import CallFormat
from device_agent.answering.dialect.pieces import Begun, Piece, Said, joined
from device_agent.answering.dialect.thoughts import held

MOST_CALLS: Final = 128
"""In one answer, which ends with the last of them."""

MAX_HEAD: Final = 256
"""Characters of a call, or of one of its arguments, within which its name has come."""


class CallsInText:
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
        self._openers = re.compile("|".join(map(re.escape, format.openers)))
        self._rest = ""
        """What no step has taken yet."""
        self._lead = self._raw = ""
        """The beginning of what may be calls, and what of them was taken, should they be none."""
        self._fresh = format.bare
        self._behind = False
        """Nothing but blanks has come since a call."""
        self._final = False
        self._out: list[Piece] = []
        self._step: Callable[[], bool] = self._text

    @property
    def over(self) -> bool:
        """Whether there may be no further call: what follows is dropped."""
        return self.complete >= self._most

    def feed(self, text: str) -> list[Piece]:
        """More text in; what is known of it now."""
        self._rest += text
        return self._taken()

    def end(self, *, whole: bool = True) -> list[Piece]:
        """What was held back, when nothing follows. whole: the model has ended it, it was not cut off."""
        self._final = True
        pieces = self._taken()
        return pieces + self._closing() if whole else pieces

    def _closing(self) -> list[Piece]:
        """What ends a call that the model has left open where it might have ended it."""
        return []

    def _taken(self) -> list[Piece]:
        while not self.over and self._step():
            pass
        if self.over:
            self._rest = ""
        out, self._out = self._out, []
        return joined(out)

    # Each step takes what it can of the rest, and says whether another one may go on; if not, more has to come.

    def _text(self) -> bool:
        text = self._rest
        if self._fresh:
            bare = text.lstrip()
            if not bare and not self._final:
                return False
            self._fresh = False
            if bare.startswith("{"):
                return self._opened(text[: len(text) - len(bare)], bare)
        found = self._openers.search(text)
        if found is not None:
            said = text[: found.start()].rstrip()
            self._say(said)
            return self._opened(text[len(said) : found.end()], text[found.end() :])
        keep = 0 if self._final else max(held(text, each) for each in self._format.openers)
        self._say(text[: len(text) - keep])
        self._rest = text[len(text) - keep :]
        return False

    def _opened(self, lead: str, rest: str) -> bool:
        self._lead, self._raw, self._rest, self._step = lead, "", rest, self._before
        return True

    @abstractmethod
    def _before(self) -> bool:
        """Where a call has to begin."""

    def _no_call(self) -> bool:
        """What was taken for a call is text, and whatever else may be in it."""
        self._say(self._lead)
        self._rest, self._raw, self._step = self._raw + self._rest, "", self._text
        return True

    def _dropped(self, mark: str) -> bool:
        """Leave a mark out that may come next; whether all of it is there that will be."""
        if len(self._rest) < len(mark) and mark.startswith(self._rest):
            return False
        self._rest = self._rest.removeprefix(mark)
        return True

    def _say(self, text: str) -> None:
        text = text.lstrip() if self._behind else text
        if text:
            self._behind = False
            self._out.append(Said(text))

    def _new_call(self, name: str) -> Begun:
        self.begun += 1
        return Begun(self._new_id(), name)
