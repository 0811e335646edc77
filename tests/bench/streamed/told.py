"""A process on a bed that is told lines of JSON and says some."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from pathlib import Path
from typing import Any, Final

import msgspec
from bench.edge.job import SECRET
from bench.testbed.bed import Testbed
from bench.testbed.processes import environment

PIPES: Final[dict[str, Any]] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
"""Arguments of `Popen` that `Told` needs."""


class DeviceFailed(RuntimeError):
    """A device has ended or says nothing; the message says which."""


class Told:
    """One process, begun with `PIPES`."""

    def __init__(self, process: subprocess.Popen[str], name: str, logs: Path) -> None:
        """name: for errors; logs: where they say to look."""
        self._process, self._name, self._logs = process, name, logs
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def say(self, message: object) -> None:
        """One line to it. Raises DeviceFailed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(message).decode() + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._failed("has ended") from error

    def hear(self, within_s: float) -> dict[str, Any]:
        """The next line from it. Raises DeviceFailed."""
        try:
            line = self._lines.get(timeout=within_s)
        except queue.Empty:
            raise self._failed(f"has said nothing for {within_s:g} s") from None
        if not line:
            raise self._failed("has ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def _failed(self, what: str) -> DeviceFailed:
        return DeviceFailed(f"{self._name} {what}; see {self._logs}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put("")


def member_environment(bed: Testbed, host: str) -> dict[str, str]:
    """Of a group's member with one thread, whose files are on its host's own disk."""
    disk = str(bed.disk(host))
    own = {"HOME": disk, "XDG_CACHE_HOME": disk, "OMP_NUM_THREADS": "1", "TRILBY_GROUP_KEY": SECRET}
    return environment(own)
