"""Child processes that live and die together, whatever signals come in between."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from service.huge_pages import with_huge_pages
from service.stopping import LAST_BYTES_S, Urgency

STOP_WITHIN_S = 5.0
"""Time that children have to stop at once before they are killed: a step of a large model may have to end first."""

IDLE_STOP_S: Final = 2.0
"""Time that device and cloud have each to end once the gateway has, with nothing left to do."""

AFTER_DRAINING_S: Final = LAST_BYTES_S + 2 * IDLE_STOP_S
"""The longest time from the end of draining to the end of all processes."""

POLL_S = 0.05

_PR_SET_PDEATHSIG = 1


class Stopped(Exception):
    """A signal asks for the end."""


class Children:
    """Processes started here, each with a name, and how urgently they are to stop."""

    def __init__(self) -> None:
        self._urgency = Urgency.NONE
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._arguments: dict[str, list[str]] = {}
        self._ready: set[str] = set()
        self._spare: set[str] = set()

    def start(self, name: str, arguments: list[str]) -> None:
        """Start a process. Ctrl-C in the terminal reaches only the parent, which then stops all in order."""
        self._arguments[name] = arguments
        self._processes[name] = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            env=with_huge_pages(),
            start_new_session=True,
            preexec_fn=_before(os.getpid()),
        )

    def ready(self, name: str) -> None:
        """This process answers: it takes signals itself from now on."""
        self._ready.add(name)

    def spare(self, name: str) -> None:
        """From now on the others go on without this process, should it end."""
        self._spare.add(name)

    def start_again(self, name: str) -> None:
        """Start a spare process that has left, with the same arguments."""
        self.start(name, self._arguments[name])
        self.spare(name)

    def told(self, urgency: Urgency) -> None:
        """For ``stop_signals``: called in the middle of anything, so that whoever waits has to look."""
        self._urgency = urgency
        if urgency is Urgency.HARD:
            self.kill()

    @property
    def may_drain(self) -> bool:
        """Whether the processes are to drain, and all of them can: they answer."""
        return self._urgency is Urgency.DRAIN and self._ready >= self._needed

    @property
    def _needed(self) -> set[str]:
        return set(self._processes) - self._spare

    def wait(self, until: Callable[[], bool]) -> tuple[str, int] | None:
        """Until something holds or a process ends: None, or which and its exit status. Raises ``Stopped``."""
        while True:
            if self._urgency:
                raise Stopped
            ended = self.ended()
            if ended is not None or until():
                return ended
            time.sleep(POLL_S)

    def ended(self) -> tuple[str, int] | None:
        """The first process that is not running any more though the others need it, and its exit status."""
        for name, process in self._processes.items():
            code = process.poll()
            if code is not None and name not in self._spare:
                return name, code
        return None

    def left(self) -> dict[str, int]:
        """The exit status of each process that has ended though the others go on; each is said once."""
        codes = {name: code for name in self._spare if (code := self._processes[name].poll()) is not None}
        for name in codes:
            self._spare.remove(name)
            del self._processes[name]
        return codes

    def drain(self, within_s: float) -> None:
        """The gateway refuses what is new and finishes what is open; then device and cloud have nothing left to do."""
        for name, limit in (("gateway", within_s + LAST_BYTES_S), ("device", IDLE_STOP_S), ("cloud", IDLE_STOP_S)):
            self._finish(name, limit)
        if self.may_drain:
            self.stop(0.0)  # They had their time.

    def _finish(self, name: str, within_s: float) -> None:
        """Have one process drain, if it is there; wait until it has ended, the time is up, or there is a hurry."""
        process = self._processes.get(name)
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + within_s
        while process.poll() is None and time.monotonic() < deadline and self.may_drain:
            time.sleep(POLL_S)

    def stop(self, within_s: float | None = None) -> None:
        """Stop all that are left at once; kill what has not ended within ``within_s`` seconds (``STOP_WITHIN_S``)."""
        for name, process in reversed(self._processes.items()):
            if process.poll() is None:
                # Until a process takes signals itself, SIGTERM ends it without a word; later SIGINT stops it at once.
                process.send_signal(signal.SIGINT if name in self._ready else signal.SIGTERM)
        deadline = time.monotonic() + (STOP_WITHIN_S if within_s is None else within_s)
        for process in self._processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill(self) -> None:
        """Kill all, and wait for nothing."""
        for process in list(self._processes.values()):
            if process.returncode is None:
                os.kill(process.pid, signal.SIGKILL)


def _before(parent: int) -> Callable[[], None]:
    """What a child does first. A parent that is killed outright cannot stop its children, Linux does it instead. And
    Ctrl-C is not ignored by them where the parent ignores it: only the parent sends it to them."""
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # It died before this line.
                os.kill(os.getpid(), signal.SIGTERM)

    return prepare
