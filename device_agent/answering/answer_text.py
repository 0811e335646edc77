"""The text of one answer as its tokens come: whole characters only, and never past a stop string. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from device_agent.answering.detokenizer import Detokenizer
from device_agent.answering.stops import StopScanner
from device_agent.answering.tokenizer import Tokenizer
from wire.request_messages import Generate


class AnswerText:
    """Tokens in, text out.

    Args:
        context: the tokens before the answer.
    """

    def __init__(self, request: Generate, tokenizer: Tokenizer, context: Sequence[int]) -> None:
        self._detokenizer = Detokenizer(tokenizer.decode, context)
        self._scanner = StopScanner(request.stop, shows=request.include_stop_str_in_output)
        self._unstopped = request.min_tokens
        """Tokens that are still to come before a stop string may end the text."""

    @property
    def stop(self) -> str:
        """The stop string that has ended it; empty: none has."""
        return self._scanner.reached

    def feed(self, token: int) -> tuple[str, bool]:
        """The text that may be shown now, and whether a stop string has ended it."""
        looks, self._unstopped = self._unstopped <= 0, self._unstopped - 1
        return self._scanner.feed(self._detokenizer.feed(token), looks=looks)

    def end(self) -> tuple[str, bool]:
        """What is left when no token follows, and whether a stop string ends it."""
        shown, stopped = self._scanner.feed(self._detokenizer.flush(), looks=self._unstopped < 0)
        return (shown, True) if stopped else (shown + self._scanner.flush(), False)
