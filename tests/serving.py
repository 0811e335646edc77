"""``trilby serve`` for tests, started with its real command line and ended by its own pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from forked import forked_serve
from processes import ROOT, free_port

READY_WITHIN_S = 150.0


class Serving:
    """The command with some arguments, its output in a file; a context manager, behind which nothing of it is left.

    Args:
        until: what it prints before the block begins; empty where nobody can read it.
        ignore_ctrl_c: start it as a shell starts what runs in the background.
        forked: start all its processes faster, where how they start is nothing to the test.
    """

    process: Any

    def __init__(
        self, log: Path, *arguments: str, until: str = "Ctrl-C", ignore_ctrl_c: bool = False, forked: bool = False
    ) -> None:
        self._until = until
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}/v1"
        self.log = log
        arguments = ("--port", str(self.port), *arguments)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if forked:
            log.touch()
            self.process = forked_serve(arguments, log, environment, ignore_ctrl_c)
            return
        command = [sys.executable, "-m", "service.command", "serve", *arguments]
        before = _ignoring if ignore_ctrl_c else None
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=ROOT, env=environment, preexec_fn=before
            )

    def __enter__(self) -> Serving:
        try:
            if self._until:
                self.wait_for(self._until)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.stop(signal.SIGKILL)

    def wait_for(self, text: str) -> str:
        """Until ``text`` has been printed; all that was."""
        deadline = time.monotonic() + READY_WITHIN_S
        while text not in self.log.read_text():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return self.log.read_text()

    def children(self) -> list[Any]:
        """The processes it has started, the oldest first."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return sorted(children, key=lambda each: each.create_time())

    def member(self) -> Any:
        """Of a group's processes the first that is not the portal: it was started right behind the gateway."""
        return self.children()[1]

    def stop(self, number: int) -> list[Any]:
        """Send a signal; the children that outlive the command."""
        children = self.children()
        self.process.send_signal(number)
        self.process.wait(60)
        alive: list[Any] = psutil.wait_procs(children, timeout=30)[1]
        return alive


def _ignoring() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
