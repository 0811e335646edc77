"""What the times of answers tell: how fast a connection and the cloud server behind it are, where the time of a turn
went, and what of that the server is to be told. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from device_agent.cloud.bandwidth import ALPHA, SHORT_BYTES, THRESHOLD, LinkMonitor
from split_model.hints import Pace, TimeSpent, TurnSpent
from wire.limits import MAX_TIMES, PACK_BELOW_BYTES_S, PACK_BYTES
from wire.session_messages import LinkState, Timing

UNPACK_ABOVE = 2.0
"""Rows go unpacked again where the link seems so many times as fast as where packing begins."""

SHORT_FRAMES = 64
"""The shortest round trip of so many short frames is one of the link, or little more: some of them waited for none."""

LONGEST_US = 2**32 - 1


class LinkPace:
    """How fast one connection and the server behind it are; the next connection begins with nothing known.

    Short frames measure the round trip and the step, long ones the bandwidth: nobody computes for a round of a few rows
    what only a prompt can change.

    Args:
        row_bytes: of one row; a frame of one is short, however long.
        may_pack: whether rows may be packed.

    Attributes:
        pace: what is known; of steps a moving mean, of those that had short frames of ours.
        changed: whether a bandwidth is news since ``news`` was asked last.
    """

    def __init__(self, row_bytes: int, may_pack: bool) -> None:
        self.pace = Pace()
        self.changed = False
        self._short_bytes = max(SHORT_BYTES, row_bytes)
        self._bandwidth = LinkMonitor(self._short_bytes)
        self._round_trips: deque[float] = deque(maxlen=SHORT_FRAMES)
        self._rtt_s: float | None = None
        self._may_pack = may_pack
        self._packing = True
        self._told_draft_us = 0

    def packs(self, length: int) -> bool:
        """Whether rows of so many bytes had better be packed: where the link is slower than packing and unpacking are.

        What the bandwidth is measured by are the rows' own bytes, so it seems higher where they are packed: that is no
        reason to stop. While it is not known, those are packed that measure it.
        """
        if not self._may_pack or length < PACK_BYTES:
            return False
        up_bytes_s = self.pace.up_bytes_s
        if up_bytes_s is None:
            return length > self._short_bytes
        self._packing = up_bytes_s < (UNPACK_ABOVE if self._packing else 1.0) * PACK_BELOW_BYTES_S
        return self._packing

    def sent(self, posted: float, up_bytes: int) -> None:
        """A frame of ``up_bytes`` was given to the link at ``posted``; call it in the order the link sends them."""
        if up_bytes > self._short_bytes:
            self._bandwidth.sent(posted, up_bytes)

    def abandoned(self, posted: float, up_bytes: int) -> None:
        """Nobody waits for the answer to this frame any more."""
        self._bandwidth.abandoned(posted, up_bytes)

    def answered(
        self,
        posted: float,
        now: float,
        up_bytes: int,
        down_bytes: int,
        queue_s: float,
        step_s: float,
        rtt_s: float | None,
    ) -> None:
        """A frame that was posted at ``posted`` has been answered ``now``; the rest is as of ``LinkMonitor.answered``.

        rtt_s: round trip of a frame without length as it was measured last, None where it never was. What short frames
            take is no less, and after enough of them known better.
        """
        if rtt_s != self._rtt_s:  # It is newer than all that short frames took so far.
            self._rtt_s = rtt_s
            self._round_trips.clear()
        if up_bytes <= self._short_bytes:
            mean_s = step_s if self.pace.step_s is None else ALPHA * self.pace.step_s + (1 - ALPHA) * step_s
            self.pace = replace(self.pace, step_s=mean_s)
            round_trip_s = now - posted - queue_s - step_s
            if round_trip_s >= 0:
                self._round_trips.append(round_trip_s)
            if down_bytes <= self._short_bytes:
                return
        known = list(self._round_trips)
        if rtt_s is not None and len(known) < SHORT_FRAMES:
            known.append(rtt_s)
        self._bandwidth.answered(posted, now, up_bytes, down_bytes, queue_s, step_s, min(known, default=None))
        self.pace = Pace(self.pace.step_s, self._bandwidth.up_bytes_s, self._bandwidth.down_bytes_s)
        self.changed = self._bandwidth.changed()

    def news(self, draft_us: int) -> LinkState | None:
        """What the cloud server is to be told, where enough has changed; it counts as told from now on. ``draft_us`` is
        what a step of drafting takes here."""
        if not (self.changed or abs(draft_us - self._told_draft_us) > THRESHOLD * self._told_draft_us):
            return None
        self.changed, self._told_draft_us = False, draft_us
        return LinkState(*self._bandwidth.report(), draft_us)


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
