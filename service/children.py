"""Child processes that live and die together."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from service.huge_pages import with_huge_pages

STOP_WITHIN_S = 8.0
"""Time a child has to stop by itself before it is killed."""

_PR_SET_PDEATHSIG = 1


class Children:
    """Processes started here, each with a name, stopped in the reverse order."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ready: set[str] = set()

    def start(self, name: str, arguments: list[str]) -> None:
        """Start a process. Ctrl-C in the terminal reaches only the parent, which then stops all in order."""
        self._processes[name] = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            env=with_huge_pages(),
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()),
        )

    def ready(self, name: str) -> None:
        """This process answers: it takes signals itself from now on."""
        self._ready.add(name)

    def ended(self) -> tuple[str, int] | None:
        """The first process that is not running any more, and its exit status."""
        for name, process in self._processes.items():
            code = process.poll()
            if code is not None:
                return name, code
        return None

    def wait(self) -> tuple[str, int]:
        """Until one process ends."""
        while True:
            ended = self.ended()
            if ended is not None:
                return ended
            time.sleep(0.2)

    def stop(self) -> None:
        """Stop all, kindly first."""
        for name, process in reversed(self._processes.items()):
            if process.poll() is None:
                # Python answers SIGINT with a traceback as long as nobody takes it; SIGTERM ends it without a word.
                process.send_signal(signal.SIGINT if name in self._ready else signal.SIGTERM)
        deadline = time.monotonic() + STOP_WITHIN_S
        for process in self._processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _die_with(parent: int) -> Callable[[], None]:
    """What a child does first: a parent that is killed outright cannot stop its children, Linux does it instead."""

    def prepare() -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # It died before this line.
                os.kill(os.getpid(), signal.SIGTERM)

    return prepare
