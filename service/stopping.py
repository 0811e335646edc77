"""What the signals that stop a process mean, in every process of Trilby.

SIGTERM drains: nothing new is taken, what is open is finished, up to a limit. So does the end of the terminal (SIGHUP):
where a system does not end the children of a process that has gone, they would stay. Ctrl-C (SIGINT) stops at once, in
order, and a second one hard. Who wants SIGINT or SIGHUP ignored, as a shell does for what it starts in the background
and nohup for what is to stay, has it ignored.
"""

from __future__ import annotations

import enum
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

DRAIN_S: Final = 20.0
"""What open answers get after SIGTERM where no setting says otherwise. With ``LAST_BYTES_S``, and a little for device
and cloud, it is less than Kubernetes' 30 s of grace; systemd gives 90 s, docker 10 s (``docker stop --time 30``)."""

LAST_BYTES_S: Final = 5
"""After draining: what HTTP responses get that are complete and not yet read."""

AT_ONCE_S: Final = 1
"""The same where a process is to stop at once."""

SAME_S: Final = 1.0
"""A second SIGTERM within this time is the first one again: systemd sends it to all processes of a service, and
then the parent of some passes it on."""

HARD_STATUS: Final = 128 + signal.SIGINT
"""Exit status after the second Ctrl-C, as shells have it."""


class Urgency(enum.IntEnum):
    """How a process is to stop; it only ever grows."""

    NONE = 0
    DRAIN = 1
    AT_ONCE = 2
    HARD = 3


def urgency_after(before: Urgency, number: int, since_s: float) -> Urgency:
    """What holds after signal ``number``, ``since_s`` seconds after the one before it."""
    if number == signal.SIGINT:
        return Urgency.HARD if before >= Urgency.AT_ONCE else Urgency.AT_ONCE
    if before is Urgency.DRAIN and since_s >= SAME_S:
        return Urgency.AT_ONCE
    return max(before, Urgency.DRAIN)


@contextmanager
def stop_signals(told: Callable[[Urgency], object]) -> Iterator[None]:
    """Within it ``told`` is called when a signal asks for more urgency, on the main thread, in the middle of anything.

    ``HARD`` ends the process right after ``told``. On another thread than the main one nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    urgency, last = Urgency.NONE, time.monotonic()

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal urgency, last
        now = time.monotonic()
        before, urgency = urgency, urgency_after(urgency, number, now - last)
        last = now
        if urgency > before:
            told(urgency)
        if urgency is Urgency.HARD:
            os._exit(HARD_STATUS)

    handlers = {each: signal.signal(each, on_signal) for each in _taken()}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def end_at_once() -> None:
    """For a process that only begins: both signals end it without a word, whatever it is doing, as reading a model."""
    if threading.current_thread() is not threading.main_thread():
        return
    # The first process of a container is not ended by signals that it does not take.
    first = os.getpid() == 1
    for number in _taken():
        signal.signal(number, _end if first else signal.SIG_DFL)


def end_in_order() -> None:
    """For a process that has begun others and serves nobody: both signals raise ``SystemExit``, so that what was begun
    is ended on the way out. A second one interrupts that."""
    if threading.current_thread() is threading.main_thread():
        for number in _taken():
            signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


def _taken() -> list[signal.Signals]:
    others = [signal.SIGINT, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    return [signal.SIGTERM, *(each for each in others if signal.getsignal(each) is not signal.SIG_IGN)]
