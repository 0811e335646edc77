"""How fast the link to the cloud is, from the times of long frames that are sent anyway: HAT's beta up and down. Pure.

A result tells how long its rows waited in the cloud and how long their step took. So the device knows, on its own
clock, when the last byte of a frame had arrived: when the result came back, less its own way back, step, wait and half
a round trip. What lies between that and the moment the link was free for the frame is its upload.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

ALPHA = 0.8
"""Weight of the past in a moving mean (the paper's alpha)."""

SHORT_BYTES = 16 * 2**10 - 1
"""Frames that are no longer are short, and so is one row, however long."""

MAX_BYTES_S = 10e9
"""More than any link has. On loopback a frame may seem to have taken no time."""

THRESHOLD = 0.2
"""A bandwidth that has changed by a smaller part than this is not worth a frame."""

LEAP = 2.0
LEAP_S = 0.01
"""Two frames one after the other that both took so many times longer than by the mean, or both shorter, and by so much,
are a link that has changed: the mean begins anew with them. A single one is jitter."""

SHORT_PART = 1 / 8
"""A frame of less than this part of the mean's bytes says nothing of a link that has changed."""

MOST_SENT = 64
"""Long frames on the way that are remembered."""


@dataclass
class _Sent:
    """A long frame that is not answered yet."""

    posted: float
    bytes: int
    abandoned: bool = False


@dataclass
class _Rate:
    """Bytes and seconds are averaged apart, and a short frame makes the past fade less: so a long frame counts for more
    than a short one, and frames that seem to have taken no time cannot carry the mean away."""

    bytes: float = 0.0
    seconds: float = 0.0
    leap: tuple[int, int, float] = (0, 0, 0.0)
    """Of the last frame that might be one: 1 for a leap up, -1 for one down, else 0; its bytes and seconds."""

    @property
    def bytes_s(self) -> float | None:
        return self.bytes / self.seconds if self.seconds else None

    def seconds_of(self, length: int) -> float:
        """Seconds that ``length`` bytes take, 0 while nothing is known."""
        return length * self.seconds / self.bytes if self.bytes else 0.0

    def observe(self, length: int, seconds: float, alone: bool) -> None:
        """Take in a long frame, unless its time cannot be one.

        alone: whether it found the link free. One behind another may seem to have taken no time where results were held
        up and came together, so it is no leap up.
        """
        if not 0 < seconds < math.inf:
            return
        seconds = max(seconds, length / MAX_BYTES_S)
        if length >= SHORT_PART * self.bytes:
            before, self.leap = self.leap, (self._leap(length, seconds, alone), length, seconds)
            if self.leap[0] and self.leap[0] == before[0]:
                self.bytes, self.seconds = (length + before[1]) / 2, (seconds + before[2]) / 2
                return
        past = ALPHA ** min(1.0, length / self.bytes) if self.bytes else 0.0
        self.bytes = past * self.bytes + (1 - past) * length
        self.seconds = past * self.seconds + (1 - past) * seconds

    def _leap(self, length: int, seconds: float, alone: bool) -> int:
        expected_s = self.seconds_of(length)
        if abs(seconds - expected_s) < LEAP_S:
            return 0
        return (alone and seconds * LEAP < expected_s) - (seconds > LEAP * expected_s > 0)


class LinkMonitor:
    """Moving means of the bandwidth up and down in bytes a second, None until measured.

    Times are seconds of one monotone clock of the device.

    Args:
        short_bytes: a frame of so many bytes or fewer is *short*: it measures the latency and its jitter, not the
            bandwidth. Nobody need tell of frames that are short both ways.
    """

    def __init__(self, short_bytes: int = SHORT_BYTES) -> None:
        self.short_bytes = short_bytes
        self._up = _Rate()
        self._down = _Rate()
        self._sent: deque[_Sent] = deque(maxlen=MOST_SENT)
        self._last_arrived = -math.inf
        self._last_back = -math.inf
        self._reported = (0, 0)

    @property
    def up_bytes_s(self) -> float | None:
        """Bandwidth to the cloud."""
        return self._up.bytes_s

    @property
    def down_bytes_s(self) -> float | None:
        """Bandwidth from the cloud."""
        return self._down.bytes_s

    def sent(self, posted: float, up_bytes: int) -> None:
        """A frame of ``up_bytes`` was given to the link at ``posted``; call it in the order the link sends them."""
        if up_bytes > self.short_bytes:
            self._sent.append(_Sent(posted, up_bytes))

    def abandoned(self, posted: float, up_bytes: int) -> None:
        """Nobody waits for the answer to this frame any more."""
        for each in self._sent:
            if (each.posted, each.bytes) == (posted, up_bytes):
                each.abandoned = True

    def answered(
        self,
        posted: float,
        arrived_back: float,
        up_bytes: int,
        down_bytes: int,
        queue_s: float,
        step_s: float,
        rtt_s: float | None,
    ) -> None:
        """The result of the frame that was sent at ``posted`` has arrived.

        Args:
            posted: when the frame was given to the link, as told to ``sent``.
            arrived_back: when the last byte of its result arrived.
            up_bytes: length of the frame.
            down_bytes: length of the result.
            queue_s: how long the frame waited in the cloud before its step.
            step_s: how long that step took.
            rtt_s: round trip of a frame without length, None where it is not known: then only frames that waited for
                the link behind another can be measured.
        """
        in_order = self._forget(posted, up_bytes)
        half_s = (rtt_s or 0.0) / 2
        beside_s = queue_s + step_s + half_s
        free = max(posted + half_s, self._last_arrived)
        measurable = in_order and (rtt_s is not None or free > posted)
        down_busy = False
        if measurable and down_bytes > self.short_bytes:
            if self.up_bytes_s is None:
                # One time for two ways: until one of them is known, both are taken to be as fast.
                way_back_s = (arrived_back - beside_s - free) * down_bytes / (up_bytes + down_bytes)
            else:
                left_cloud = free + self._up.seconds_of(up_bytes) + beside_s
                down_busy = self._last_back > left_cloud
                way_back_s = arrived_back - max(left_cloud, self._last_back)
            self._down.observe(down_bytes, way_back_s, alone=not down_busy)
        arrived = arrived_back - self._down.seconds_of(down_bytes) - beside_s
        # Behind another result, this one says when the way back was free, not when its frame had arrived.
        if measurable and not down_busy and up_bytes > self.short_bytes:
            self._up.observe(up_bytes, arrived - free, alone=self._last_arrived <= posted + half_s)
        self._last_arrived = max(arrived, self._last_arrived)
        self._last_back = max(arrived_back, self._last_back)

    def changed(self) -> bool:
        """Whether a bandwidth has become known, or is more than ``THRESHOLD`` away from what was reported last."""
        return any(
            now is not None and abs(now - then) > THRESHOLD * then
            for now, then in zip((self.up_bytes_s, self.down_bytes_s), self._reported, strict=True)
        )

    def report(self) -> tuple[int, int]:
        """Bytes a second up and down, 0 for what is not known, which count as reported from now on."""
        self._reported = (round(self.up_bytes_s or 0), round(self.down_bytes_s or 0))
        return self._reported

    def _forget(self, posted: float, up_bytes: int) -> bool:
        """Forget a frame that is answered. False if a long frame before it is not: it held the link up, for how long
        is not known yet."""
        frames = [(each.posted, each.bytes) for each in self._sent]
        if (posted, up_bytes) not in frames:
            return True
        before = [self._sent.popleft() for _ in range(frames.index((posted, up_bytes)))]
        self._sent.popleft()
        # Of those that nothing answers it is known now that they are through, so they hold nobody else up.
        self._sent.extendleft(each for each in reversed(before) if not each.abandoned)
        return not before
