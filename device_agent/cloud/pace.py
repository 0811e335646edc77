"""How fast one connection and the cloud server behind it are, and what of that the server is to be told. Pure."""

from __future__ import annotations

from device_agent.cloud.bandwidth import ALPHA, SHORT_BYTES, THRESHOLD, LinkMonitor
from split_model.hints import Pace
from wire.limits import PACK_BELOW_BYTES_S, PACK_BYTES
from wire.session_messages import LinkState, Result

UNPACK_ABOVE = 2.0
"""Rows go unpacked again where the link seems so many times as fast as where packing begins."""


class LinkPace:
    """Of one connection; the next one begins with nothing known.

    Args:
        row_bytes: of one row; a frame of one is short, however long.
        may_pack: whether rows may be packed.

    Attributes:
        monitor: how fast the link is.
    """

    def __init__(self, row_bytes: int, may_pack: bool) -> None:
        self.monitor = LinkMonitor(max(SHORT_BYTES, row_bytes))
        self._may_pack = may_pack
        self._packing = True
        self._step_s: float | None = None
        self._told_draft_us = 0

    @property
    def pace(self) -> Pace:
        """What is known: of steps a moving mean, of those that had short frames of ours."""
        return Pace(self._step_s, self.monitor.up_bytes_s, self.monitor.down_bytes_s)

    def packs(self, length: int) -> bool:
        """Whether rows of so many bytes had better be packed: where the link is slower than packing and unpacking are.

        What the bandwidth is measured by are the rows' own bytes, so it seems higher where they are packed: that is no
        reason to stop. While it is not known, those are packed that measure it.
        """
        up_bytes_s = self.monitor.up_bytes_s
        if not self._may_pack or length < PACK_BYTES:
            return False
        if up_bytes_s is None:
            return length > self.monitor.short_bytes
        self._packing = up_bytes_s < (UNPACK_ABOVE if self._packing else 1.0) * PACK_BELOW_BYTES_S
        return self._packing

    def answered(
        self, result: Result, posted: float, now: float, up_bytes: int, down_bytes: int, rtt_s: float | None
    ) -> None:
        """A frame of ``up_bytes`` that was posted at ``posted`` has been answered ``now``; see ``LinkMonitor``."""
        queue_s, step_s = result.queue_us / 1e6, result.step_us / 1e6
        if up_bytes <= self.monitor.short_bytes:
            self._step_s = step_s if self._step_s is None else ALPHA * self._step_s + (1 - ALPHA) * step_s
        self.monitor.answered(posted, now, up_bytes, down_bytes, queue_s, step_s, rtt_s)

    def news(self, draft_us: int) -> LinkState | None:
        """What the cloud server is to be told, where enough has changed; it counts as told from now on. ``draft_us`` is
        what a step of drafting takes here."""
        if not (self.monitor.changed() or abs(draft_us - self._told_draft_us) > THRESHOLD * self._told_draft_us):
            return None
        self._told_draft_us = draft_us
        return LinkState(*self.monitor.report(), draft_us)
