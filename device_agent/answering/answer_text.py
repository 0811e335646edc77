"""An answer as its tokens come, in pieces: whole characters only, and of its text never past a stop string. Pure.

Stop strings are looked for in what is said: neither thoughts nor calls of tools end with one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from device_agent.answering.detokenizer import Detokenizer
from device_agent.answering.dialect.pieces import Piece, Said
from device_agent.answering.dialect.reader import AnswerReader
from device_agent.answering.stops import StopScanner
from wire.request_messages import Generate


class AnswerText:
    """Tokens in, pieces out.

    Args:
        decode: ids to text; see ``Detokenizer``.
        reader: tells thoughts and calls apart from what is said; None: all is said.
        context: the tokens before the answer.
    """

    def __init__(
        self,
        request: Generate,
        decode: Callable[[Sequence[int]], str],
        reader: AnswerReader | None,
        context: Sequence[int],
    ) -> None:
        self._detokenizer = Detokenizer(decode, context)
        self._reader = reader
        self._scanner = StopScanner(request.stop, shows=request.include_stop_str_in_output)
        self._come = self._shown = 0
        self._unstopped = request.min_tokens
        """Tokens that are still to come before a stop string, or the last call there may be, ends the answer."""

    @property
    def stop(self) -> str:
        """The stop string that has ended it; empty: none has."""
        return self._scanner.reached

    @property
    def held(self) -> int:
        """Characters that have come and are not shown yet; 0 where not all is said."""
        return self._come - self._shown if self._reader is None else 0

    @property
    def reason(self) -> Literal["stop", "tool_calls"]:
        """Why it ends, where it was not cut off."""
        return "tool_calls" if self._reader is not None and self._reader.called else "stop"

    def feed(self, token: int) -> tuple[list[Piece], bool]:
        """The pieces that may be shown now, and whether the answer ends with them."""
        looks, self._unstopped = self._unstopped <= 0, self._unstopped - 1
        text = self._detokenizer.feed(token)
        self._come += len(text)
        pieces, stopped = self._scanned([Said(text)] if self._reader is None else self._reader.feed(text), looks)
        return pieces, stopped or (looks and self._reader is not None and self._reader.over)

    def end(self, *, whole: bool) -> tuple[list[Piece], bool]:
        """What is left when no token follows, and whether a stop string ends it. whole: the model has ended it."""
        text, looks = self._detokenizer.flush(), self._unstopped < 0
        read: list[Piece] = [Said(text)]
        if self._reader is not None:
            read = self._reader.feed(text) + self._reader.end(whole=whole)
        pieces, stopped = self._scanned(read, looks)
        return (pieces, True) if stopped else (pieces + _said(self._scanner.flush()), False)

    def _scanned(self, read: Iterable[Piece], looks: bool) -> tuple[list[Piece], bool]:
        shown: list[Piece] = []
        for piece in read:
            if isinstance(piece, Said):
                text, stopped = self._scanner.feed(piece.text, looks=looks)
                self._shown += len(text)
                shown += _said(text)
                if stopped:
                    return shown, True
            else:  # No stop string goes over it.
                shown += [*_said(self._scanner.flush()), piece]
        return shown, False


def _said(text: str) -> list[Piece]:
    return [Said(text)] if text else []
