"""How fast rows go to a cloud server and back: some are sent on a session of their own, as prompts are.

A result says how long its rows waited and how long their step took, so what is left of the time is the link's. It
begins with what a slow link carries in a second, and sends more only where that took next to no time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wire.frames import Tensor
from wire.limits import CLOUD_LINK, ITEM_BYTES
from wire.message import Drain, Failed
from wire.session_messages import Close, CloudWelcome, DeviceHello, Forward, Open, Result, Truncate
from wire.stream import Stream

WITHIN_S: Final = 5.0
"""For all of it."""

FIRST_BYTES: Final = 64 * 2**10
MOST_BYTES: Final = 768 * 2**10
"""Of the first frame and of the longest: with the one between, and the longest three times, less than 3 MB go up."""

GROWTH: Final = 4
ENOUGH_S: Final = 0.25
"""A frame that takes so long on its way says how fast the link is."""

LONGEST_STEP_S: Final = 0.5
"""Rows that take the cloud so long are not made more: others wait for it."""

LEAST_JITTER_S: Final = 1e-4

SESSION: Final = 1


class NotMeasured(Exception):
    """The cloud server does not take the rows; the message says why."""


@dataclass(frozen=True)
class Speeds:
    """Of a link, by frames of ``length`` bytes.

    Attributes:
        up_bytes_s, down_bytes_s: bytes a second.
        up_is_least, down_is_least: it is faster than such frames can tell.
    """

    up_bytes_s: float
    down_bytes_s: float
    up_is_least: bool
    down_is_least: bool
    length: int


def speeds_of(length: int, up_s: float, down_s: float, jitter_s: float) -> Speeds:
    """Speeds of frames that took so long on their way up and down. Pure.

    jitter_s: what round trips differ by; less than twice that tells nothing.
    """
    least_s = 2 * max(jitter_s, LEAST_JITTER_S)
    up, down = length / max(up_s, least_s), length / max(down_s, least_s)
    return Speeds(up, down, up_s < least_s, down_s < least_s, length)


def finite_rows(count: int, hidden_size: int, dtype: str) -> bytes:
    """Rows of numbers between 0.5 and 2, which nobody between can press together, in ``dtype``, little-endian."""
    size = ITEM_BYTES[dtype]
    data = bytearray(os.urandom(count * hidden_size * size))
    data[size - 1 :: size] = b"\x3f" * (count * hidden_size)  # Sign and the exponent's upper bits.
    return bytes(data)


async def measured(stream: Stream, welcome: CloudWelcome, hello: DeviceHello, times: Sequence[float]) -> Speeds:
    """Send rows on a connection that was welcomed, which has no session yet, and close the session again.

    times: round trips that were measured on it, in seconds.

    Raises:
        NotMeasured: the cloud server takes no session now.
        ConnectionFailed: the connection has ended.
    """
    row_bytes = hello.hidden_size * ITEM_BYTES[hello.dtype]
    most = min(welcome.max_rows, welcome.window_rows, welcome.max_positions, max(1, MOST_BYTES // row_bytes))
    most = min(most, CLOUD_LINK.rows_of(hello.hidden_size, hello.dtype))
    if not most or not times:
        raise NotMeasured("no rows are taken, or no ping was answered")
    trial = _Trial(stream, hello, min(times))
    stream.post(Open(SESSION, most))
    try:
        rows = min(most, max(1, FIRST_BYTES // row_bytes))
        while True:
            up_s, step_s = await trial.sent(rows, 0)
            if rows == most or up_s >= ENOUGH_S or step_s >= LONGEST_STEP_S:
                break
            rows = min(most, GROWTH * rows)
        if up_s < ENOUGH_S:  # Little beside what a busy machine adds now and then.
            up_s = min(up_s, (await trial.sent(rows, 0))[0])
        both_s, _ = await trial.sent(rows, rows)
    finally:
        stream.post(Close(SESSION))
    return speeds_of(rows * row_bytes, up_s, both_s - up_s, max(times) - min(times))


class _Trial:
    """Forwards of one session, one after the other."""

    def __init__(self, stream: Stream, hello: DeviceHello, rtt_s: float) -> None:
        self._stream, self._hello, self._rtt_s = stream, hello, rtt_s
        self._sequence = 0

    async def sent(self, rows: int, want: int) -> tuple[float, float]:
        """Seconds that so many rows, and the ``want`` that come back, took on their way; and in the cloud."""
        hidden, dtype = self._hello.hidden_size, self._hello.dtype
        tensor = Tensor(dtype, (rows, hidden), finite_rows(rows, hidden, dtype))
        clock = asyncio.get_running_loop().time
        began = clock()
        self._stream.post(Forward(SESSION, self._sequence, 0, want), [tensor])
        result = await self._answer()
        took_s = clock() - began
        self._sequence += 1
        self._stream.post(Truncate(SESSION, 0))
        there_s = (result.queue_us + result.step_us) / 1e6
        return max(0.0, took_s - there_s - self._rtt_s), there_s

    async def _answer(self) -> Result:
        while True:
            message = (await self._stream.receive()).message
            if isinstance(message, Result):
                return message
            if isinstance(message, Failed):
                raise NotMeasured(message.message)
            if isinstance(message, Drain):
                raise NotMeasured("the cloud server is stopping")
