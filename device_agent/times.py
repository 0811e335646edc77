"""Times that this device sees, gathered until they are reported. Pure."""

from __future__ import annotations

from wire.limits import MAX_TIMES
from wire.messages import Timing

LONGEST_US = 2**32 - 1


class Times:
    """Times to first token and between tokens since the last report; what is beyond one message is left out."""

    def __init__(self) -> None:
        self._ttft_us: list[int] = []
        self._tbt_us: list[int] = []

    def ttft(self, seconds: float) -> None:
        """From handing over the first row of a prompt to its answer."""
        _add(self._ttft_us, seconds)

    def tbt(self, seconds: float) -> None:
        """Between two answers after the prompt."""
        _add(self._tbt_us, seconds)

    def take(self) -> Timing | None:
        """The message that reports them; None when there are none."""
        if not self._ttft_us and not self._tbt_us:
            return None
        timing = Timing(self._ttft_us, self._tbt_us)
        self._ttft_us, self._tbt_us = [], []
        return timing


def _add(times_us: list[int], seconds: float) -> None:
    if len(times_us) < MAX_TIMES:
        times_us.append(min(LONGEST_US, round(seconds * 1e6)))
