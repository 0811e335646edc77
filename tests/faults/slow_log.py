"""A disk for logs that stands still now and then: a pipe that is read into a file, or for a while is not.

with SlowLog(folder) as log:
    ...  # processes write to log.path
    log.stands_still(2.0)
"""

from __future__ import annotations

import fcntl
import os
import select
import threading
import time
from pathlib import Path
from typing import Final

from forked import ForkedProcess
from processes import Process

PIPE_BYTES: Final = 4096
"""What fits into it while nobody reads: some lines."""
LOOK_EVERY_S: Final = 0.1


class _Unread:
    @property
    def output(self) -> str:
        """Nothing: the log is a pipe, which a test must not read."""
        return ""


class Unread(_Unread, ForkedProcess):
    """A process that logs to a pipe."""


class UnreadAlone(_Unread, Process):
    """The same by a command of its own: libraries may be loaded before it, which a fork would not have."""


class SlowLog:
    """A context manager.

    Attributes:
        path: the pipe. file: with all that came through it.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self.file = folder / "pipe", folder / "log"
        os.mkfifo(self.path)
        self._still_until = 0.0
        self._over = threading.Event()
        # For both ways, so that it is there before and after any process that writes to it.
        self._end = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(self._end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._thread = threading.Thread(target=self._pump, name="slow-log")

    def __enter__(self) -> SlowLog:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        os.close(self._end)

    def stands_still(self, for_s: float) -> None:
        """Nothing is taken for so long."""
        self._still_until = time.monotonic() + for_s

    def _pump(self) -> None:
        with self.file.open("ab") as file:
            while not self._over.is_set():
                if time.monotonic() < self._still_until:
                    self._over.wait(LOOK_EVERY_S)
                elif select.select([self._end], [], [], LOOK_EVERY_S)[0]:
                    file.write(os.read(self._end, PIPE_BYTES))
                    file.flush()
