"""Token ids to text, piece by piece, never half a character. Pure but for the decoder handed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

INCOMPLETE = "\ufffd"
CONTEXT_TOKENS = 6
"""Tokens decoded together with the new ones, since a piece's text can depend on its neighbours (leading spaces)."""

MOST_CONTEXT_TOKENS = 64
"""The same where they are special tokens, which have no text."""

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
        self._keep_context(list(context))

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
        if text.startswith(self._shown_text):
            new = text[len(self._shown_text) :]
        else:  # Bytes that are no character can spoil the text of the context before them.
            new = self._decode(self._ids[self._shown :])
        self._keep_context(self._ids)
        return new

    def _keep_context(self, ids: list[int]) -> None:
        """Keep the last few tokens, but none that begin inside a character: decoders differ in what they make of it.
        Where none of them has a text, more: what comes would count as the beginning."""
        most = CONTEXT_TOKENS
        while most < min(len(ids), MOST_CONTEXT_TOKENS) and not self._decode(ids[-most:]):
            most += 1
        for length in range(min(most, len(ids)), -1, -1):
            self._ids = ids[len(ids) - length :]
            self._shown_text = self._decode(self._ids)
            if INCOMPLETE not in self._shown_text:
                break
        self._shown = len(self._ids)
