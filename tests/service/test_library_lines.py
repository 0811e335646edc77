"""What libraries log: said, and not without end where a peer can have it said at will."""

from __future__ import annotations

import logging
from typing import Any

from service.logs import _Handler
from service.ration import BURST


class Kept:
    """Keeps lines instead of writing them."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def put(self, text: str) -> None:
        """One more."""
        self.lines.append(text)


def test_a_flood_is_said_now_and_then() -> None:
    """A thousand mishaps at one place, each in other words and with a traceback, are a few lines; another place is
    heard beside them, and how many were left out is told."""
    kept: Any = Kept()
    handler, library = _Handler(kept, None), logging.Logger("a library")
    library.addHandler(handler)

    def mishap(number: int) -> None:
        try:
            raise ValueError
        except ValueError:
            library.exception("no sense at 0x%x", number)

    for number in range(1000):
        mishap(number)
    assert BURST <= len(kept.lines) <= BURST + 5
    assert kept.lines[0].startswith("a library: no sense at 0x0\nTraceback")
    library.error("something else")
    assert kept.lines[-1] == "a library: something else\n"
    for kind in handler._ration._kinds.values():
        kind.left = 1.0
    mishap(1000)
    assert "at 0x3e8 (9" in kept.lines[-1] and "like it were left out" in kept.lines[-1]
