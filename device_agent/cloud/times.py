"""Times that this device sees, gathered until they are reported or an answer is complete. Pure."""

from __future__ import annotations

from split_model.hints import TimeSpent, TurnSpent
from wire.limits import MAX_TIMES
from wire.session_messages import Timing

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


class Turn:
    """The times of one turn of a session: of its prompt, and from one wanted answer of the cloud behind it to the next.

    Args:
        prompt_end: the position at which its prompt ends.
        began: when it began, in seconds of the clock that all moments here are of.
    """

    def __init__(self, prompt_end: int, began: float) -> None:
        self.prompt_end = prompt_end
        self._at = began
        """Up to when it is known where the time went."""
        self._asked_at: float | None = None
        self._prompt: TimeSpent | None = None
        self._decode = TimeSpent()
        self._answers = 0

    @property
    def spent(self) -> TurnSpent | None:
        """Where the time went so far; None until the prompt is answered."""
        return None if self._prompt is None else TurnSpent(self._prompt, self._decode, self._answers)

    def fork(self, position: int, now: float) -> Turn:
        """That of a session which goes on ``now`` where this one was at ``position``, its prompt being answered: the
        prompt's time is the same, the rest its own."""
        forked = Turn(position, now)
        forked._prompt = self._prompt
        return forked

    def asked(self, now: float) -> None:
        """Rows were handed over; the first are what the prompt's time is counted from."""
        if self._asked_at is None:
            self._asked_at = now

    def answered(self, times: Times, position: int, posted: float, now: float, queue_us: int, step_us: int) -> None:
        """A wanted answer has come ``now``, the rows up to ``position`` being answered; its time goes to ``times``.

        Args:
            posted: when the last of what it answers was sent. Where that was before the answer before it came, the
                device took no time of its own.
            queue_us, step_us: as the cloud says; no more of them counts than there was time.
        """
        if self._asked_at is None:
            return
        if self._prompt is not None:
            times.tbt(now - self._at)
        elif position >= self.prompt_end:
            times.ttft(now - self._asked_at)
        else:
            return
        left = now - self._at
        device_s = min(max(0.0, posted - self._at), left)
        left -= device_s
        step_s = min(step_us / 1e6, left)
        left -= step_s
        queue_s = min(queue_us / 1e6, left)
        self._at = now
        spent = TimeSpent(device_s, left - queue_s, queue_s, step_s)
        if self._prompt is None:
            self._prompt = spent
        else:
            self._decode += spent
            self._answers += 1


def _add(times_us: list[int], seconds: float) -> None:
    if len(times_us) < MAX_TIMES:
        times_us.append(min(LONGEST_US, round(seconds * 1e6)))
