"""Stop strings in a stream of text. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Passes text on, but never any part of a stop string.

    Args:
        stops: the strings that end the text; empty ones are ignored.
        shows: whether the stop string that ends the text is passed on with it.

    Attributes:
        reached: the stop string that has ended the text; empty: none has.
    """

    def __init__(self, stops: Sequence[str], *, shows: bool = False) -> None:
        self._stops = [stop for stop in stops if stop]
        self._shows = shows
        self._held = ""
        self.reached = ""

    def feed(self, text: str, *, looks: bool = True) -> tuple[str, bool]:
        """More text in; what may be shown now, and whether a stop string has been reached (then nothing follows).

        looks: whether one that is complete with this text ends it; of one that is not complete yet a later text may.
        """
        seen, text = len(self._held), self._held + text
        # The stop string that is complete first ends the text, so that it does not matter how the text was cut up. One
        # that was complete with an earlier text, and is held as the beginning of another, did not end it then.
        places = [(text.find(stop, max(0, seen + 1 - len(stop))), stop) for stop in self._stops if looks]
        found = [(place + len(stop), place) for place, stop in places if place >= 0]
        if found:
            self._held = ""
            end, begin = min(found)
            self.reached = text[begin:end]
            return text[: end if self._shows else begin], True
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
