"""Times that this device sees, gathered until they are reported or an answer is complete. Pure."""

from __future__ import annotations

from wire.limits import MAX_TIMES
from wire.messages import Spent, Timing, Timings

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


class Breakdown:
    """Where the time of one answer goes, from one wanted answer of the cloud to the next.

    Args:
        began: when the answer was begun with, in seconds of the clock that all moments here are of.
    """

    def __init__(self, began: float) -> None:
        self._at = began
        self._prompt: Spent | None = None
        self._device_s = self._link_s = self._queue_s = self._step_s = 0.0
        self._answers = 0

    @property
    def timings(self) -> Timings | None:
        """What is known so far, each wanted answer after the prompt's counted as a round; None before that one."""
        return None if self._prompt is None else Timings(self._prompt, self._spent(), self._answers)

    def answered(self, posted: float, now: float, queue_us: int, step_us: int) -> None:
        """A wanted answer has come ``now``, at first the one that ends the prompt.

        Args:
            posted: when the last of what it answers was sent. Where that was before the answer before it came, the
                device took no time of its own.
            queue_us, step_us: as the cloud says; no more of them counts than there was time.
        """
        left = now - self._at
        device_s = min(max(0.0, posted - self._at), left)
        left -= device_s
        step_s = min(step_us / 1e6, left)
        left -= step_s
        queue_s = min(queue_us / 1e6, left)
        self._at = now
        self._device_s += device_s
        self._link_s += left - queue_s
        self._queue_s += queue_s
        self._step_s += step_s
        if self._prompt is not None:
            self._answers += 1
            return
        self._prompt = self._spent()
        self._device_s = self._link_s = self._queue_s = self._step_s = 0.0

    def _spent(self) -> Spent:
        # Cut, not rounded: the four never come to more than there was.
        seconds = self._device_s, self._link_s, self._queue_s, self._step_s
        return Spent(*(int(each * 1e6) for each in seconds))


def _add(times_us: list[int], seconds: float) -> None:
    if len(times_us) < MAX_TIMES:
        times_us.append(min(LONGEST_US, round(seconds * 1e6)))
