"""Processes forked from one that has imported everything: they start in tenths of a second instead of seconds.

For tests and benchmarks that start the same program again and again. What runs is the same as with the command line.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from typing import Any

from processes import ROOT, Process

from service.lines import LineStream
from split_model import warming

_FORKS = multiprocessing.get_context("forkserver")
_PROGRAMS = ("gateway.__main__", "cloud_server.__main__", "device_agent.__main__", "device_agent.group.member")
_FORKS.set_forkserver_preload([*_PROGRAMS, "transformers"])


class _Child:
    """A forked process with what ``Process`` uses of ``subprocess.Popen``."""

    def __init__(self, child: Any) -> None:
        self._child = child
        self.pid: int = child.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, minus the signal's number where one has ended it; None while it runs."""
        status: int | None = self._child.exitcode
        return status

    def poll(self) -> int | None:
        """The same."""
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns the exit status. Raises ``subprocess.TimeoutExpired``."""
        self._child.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return self.returncode


class ForkedProcess(Process):
    """As ``Process``, forked.

    Attributes:
        warms: whether processes compute something before their first request; only who measures has to wait for it.
    """

    warms = True

    def start(self) -> Process:
        """Start without waiting."""
        module, *arguments = self._arguments[2:]
        given = (module, arguments, str(self.log), self._environment, self.warms)
        child = _FORKS.Process(target=_run, args=given, daemon=True)
        child.start()
        self.process = _Child(child)  # type: ignore[assignment]
        return self


def _run(module: str, arguments: list[str], log: str, environment: dict[str, str], warms: bool) -> None:
    """``python -m module arguments``, its output in a file."""
    if not warms:
        warming.WARM_UP_S = 0.0  # type: ignore[misc]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    with open(log, "ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    program = importlib.import_module(f"{module}.__main__" if f"{module}.__main__" in _PROGRAMS else module)
    try:
        program.main(arguments, prog_name=program.main.name)
    except SystemExit as ended:
        if not isinstance(ended.code, str):
            raise
        print(ended.code, file=sys.stderr)  # As Python does, while there is somebody who writes it.
        raise SystemExit(1) from None
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            if isinstance(stream, LineStream):
                stream.writer.flush()
