"""Where a text begins to say the same over and over, as small models do when nobody stops them. Pure.

Such a stretch is easy to draft and nobody's text: a drafter that is trained or measured on it looks better than it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drafting.distill.text import Document

LONGEST_PERIOD = 96
"""Tokens of what is said again; loops of small models are sentences or paragraphs."""

TIMES = 3
"""How often it must be said in all: a refrain comes twice."""

LEAST_REPEATED = 16
"""Tokens said again at least: "no, no, no" is no loop."""


def loop_begin(ids: Sequence[int]) -> int | None:
    """Where the first repetition of a loop begins, so that what is said stays there once; None without one."""
    found: int | None = None
    for period in range(1, min(LONGEST_PERIOD, len(ids) - 1) + 1):
        wanted = max((TIMES - 1) * period, LEAST_REPEATED)
        run = 0
        for at in range(period, len(ids) if found is None else min(len(ids), found + wanted)):
            run = run + 1 if ids[at] == ids[at - period] else 0
            if run == wanted:
                begin = at - wanted + 1
                found = begin if found is None else min(found, begin)
                break
    return found


@dataclass(frozen=True)
class Loops:
    """How many tokens of ``said`` answers were ``cut``, being loops."""

    cut: int
    said: int

    @property
    def share(self) -> float:
        return self.cut / self.said if self.said else 0.0


NO_LOOPS = Loops(0, 0)
"""Nothing was looked at: no answer was said anew."""


def without_loops(documents: Sequence[Document]) -> tuple[list[Document], Loops]:
    """The documents with their last answers cut where a loop begins; what has no answer left is left out."""
    kept: list[Document] = []
    cut = said = 0
    for document in documents:
        answer = document.ids[document.prompt :].tolist()
        begin = loop_begin(answer)
        end = len(document.ids)
        if begin is not None:
            end = document.prompt + begin
        said += len(answer)
        cut += len(document.ids) - end
        if end > document.prompt:
            kept.append(Document(document.ids[:end], document.own[:end]))
    return kept, Loops(cut, said)
