"""Where the processes of one program are, and the end of all that are in a cgroup."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

END_WITHIN_S = 10.0


class Leaf:
    """Where the processes of one program are.

    Attributes:
        folder: which says where they run.
        entrances: files to which the first of them writes its number; what it starts follows it.
    """

    def __init__(self, folder: Path, entrances: list[Path]) -> None:
        self.folder = folder
        self.entrances = entrances

    def pids(self) -> list[int]:
        """All that run now, those that are set apart included."""
        return [pid for above, _, _ in os.walk(self.folder) for pid in pids_in(Path(above))]

    def remove(self) -> None:
        """Kill what is left and remove it."""
        remove(self.folder)


def pids_in(folder: Path) -> list[int]:
    """All processes in a cgroup; none where there is no such cgroup."""
    try:
        numbers = (folder / "cgroup.procs").read_text().split()
    except OSError:
        return []
    return [int(each) for each in numbers if each != "0"]  # 0 is somebody outside this container.


def remove(folder: Path) -> None:
    """Kill what runs in a cgroup or below it, and remove all of it; nothing where it is gone. Raises OSError where
    something cannot be ended."""
    deadline = time.monotonic() + END_WITHIN_S
    while folder.exists():
        for above, _, _ in os.walk(folder, topdown=False):
            for pid in pids_in(Path(above)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                os.rmdir(above)
            except FileNotFoundError:
                pass
            except OSError:  # What was killed takes a moment to go.
                if time.monotonic() > deadline:
                    raise
        time.sleep(0.002)
