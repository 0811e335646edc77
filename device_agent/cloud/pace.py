"""How fast one connection to a cloud server, and the server behind it, are: by what frames and their answers take."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from device_agent.cloud.bandwidth import ALPHA, SHORT_BYTES, THRESHOLD, LinkMonitor
from split_model.hints import Pace
from wire.limits import PACK_BELOW_BYTES_S, PACK_BYTES
from wire.session_messages import LinkState

UNPACK_ABOVE = 2.0
"""Rows go unpacked again where the link seems so many times as fast as where packing begins."""

SHORT_FRAMES = 64
"""The shortest round trip of so many short frames is one of the link, or little more: some of them waited for none."""


class CloudPace:
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
