"""Token ids to text, piece by piece, never half a character. Pure but for the decoder handed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

INCOMPLETE = "\ufffd"
CONTEXT_TOKENS = 6
"""Tokens decoded together with the new ones, since a piece's text can depend on its neighbours (leading spaces)."""

MAX_HELD_TOKENS = 16
"""Tokens that may wait for a character to become complete; more are no character in any encoding."""


class Detokenizer:
    """The text of a growing list of tokens.

    Args:
        decode: ids to text, special tokens left out, bytes that are no character as U+FFFD.
        context: tokens before the first, whose text is not repeated.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = list(context[-CONTEXT_TOKENS:])
        self._shown = len(self._ids)
        self._shown_text = decode(self._ids)

    def feed(self, token: int) -> str:
        """The complete characters that ``token`` adds; maybe none yet."""
        self._ids.append(token)
        if self._pending_is_incomplete() and len(self._ids) - self._shown < MAX_HELD_TOKENS:
            return ""
        return self._show()

    def flush(self) -> str:
        """What is left at the end, incomplete characters as U+FFFD."""
        return self._show()

    def _pending_is_incomplete(self) -> bool:
        return self._decode(self._ids).endswith(INCOMPLETE)

    def _show(self) -> str:
        text = self._decode(self._ids)
        new = text[len(self._shown_text) :]
        # Keep a short context, and remember its text as it reads on its own.
        self._ids = self._ids[-CONTEXT_TOKENS:]
        self._shown = len(self._ids)
        self._shown_text = self._decode(self._ids)
        return new
