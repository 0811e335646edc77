"""What outlives a bed's owner by a moment, to kill what the kernel does not: processes that parts have started."""

from __future__ import annotations

import subprocess
from pathlib import Path

FIND = 'pids=$(cat "$1"/*/*/cgroup.procs "$1"/*/*/*/cgroup.procs 2>/dev/null)'  # Where one is not there, cat fails.
WATCH = f'read -r _; while {FIND}; [ -n "$pids" ]; do kill -9 $pids; done'


class Guard:
    """A shell that waits for the end of this process, however it comes: nobody else holds the other end of its input.

    Args:
        folder: a cgroup; what runs two or three levels below it is killed then.
    """

    def __init__(self, folder: Path) -> None:
        self._shell = subprocess.Popen(
            ["sh", "-c", WATCH, "sh", str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def close(self) -> None:
        """End it; whatever still runs there is killed."""
        self._shell.communicate()
