"""Where a JSON object or list ends in a text that comes in pieces. Pure."""

from __future__ import annotations

import re
from typing import Final

_MARKS: Final = re.compile(r'["\\{}\[\]]')


class Extent:
    """How far a value goes, whatever is in it: only its brackets and strings are looked at.

    Args:
        depth: brackets that are open already.
    """

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._quoted = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """Take more of the text, first of all from the value's own bracket on; return the place behind the value's end
        in it, None where it goes on."""
        at = 0
        if self._escaped and text:
            at, self._escaped = 1, False
        while (found := _MARKS.search(text, at)) is not None:
            at, mark = found.end(), found.group()
            if mark == '"':
                self._quoted = not self._quoted
            elif mark == "\\":
                if self._quoted:
                    self._escaped = at == len(text)
                    at += 1
            elif not self._quoted:
                self._depth += 1 if mark in "{[" else -1
                if self._depth <= 0:
                    return at
        return None
