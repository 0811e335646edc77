"""An answer's text as pieces: what was thought, what is said, calls of tools. Pure."""

from __future__ import annotations

from device_agent.answering.dialect.calls_in_text import CallsInText
from device_agent.answering.dialect.pieces import Piece, Said
from device_agent.answering.dialect.thoughts import Thoughts


class AnswerReader:
    """Reads one answer as it comes.

    Args:
        thoughts: tells thoughts apart; None: all is said.
        calls: tells calls apart from what is said.
    """

    def __init__(self, thoughts: Thoughts | None, calls: CallsInText | None) -> None:
        self._thoughts = thoughts
        self._calls = calls

    def feed(self, text: str) -> list[Piece]:
        """More text in; what is known of it now."""
        return self._told(self._thoughts.feed(text) if self._thoughts is not None else [Said(text)])

    def end(self, *, whole: bool = True) -> list[Piece]:
        """What was held back, when nothing follows. whole: the model has ended it, it was not cut off."""
        told = self._told(self._thoughts.end()) if self._thoughts is not None else []
        return told + (self._calls.end(whole=whole) if self._calls is not None else [])

    @property
    def called(self) -> bool:
        """Whether a call was told."""
        return self._calls is not None and self._calls.begun > 0

    @property
    def over(self) -> bool:
        """Whether the answer has all the calls that it may have, and ends."""
        return self._calls is not None and self._calls.over

    def _told(self, pieces: list[Piece]) -> list[Piece]:
        if self._calls is None:
            return pieces
        told: list[Piece] = []
        for piece in pieces:
            told += self._calls.feed(piece.text) if isinstance(piece, Said) else [piece]
        return told
