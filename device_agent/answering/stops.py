"""Stop strings in a stream of text. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Passes text on, but never any part of a stop string.

    Args:
        stops: the strings that end the text; empty ones are ignored.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """More text in; what may be shown now, and whether a stop string has been reached (then nothing follows)."""
        text = self._held + text
        # The stop string that is complete first ends the text, so that it does not matter how the text was cut up.
        found = [(text.find(stop) + len(stop), text.find(stop)) for stop in self._stops if stop in text]
        if found:
            self._held = ""
            return text[: min(found)[1]], True
        keep = self._suffix_that_may_grow(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """What was held back, when the text ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _suffix_that_may_grow(self, text: str) -> int:
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            suffix = text[len(text) - length :]
            if any(stop.startswith(suffix) for stop in self._stops):
                return length
        return 0
