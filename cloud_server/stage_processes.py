"""The processes of a pipeline's stages: started, watched, ended."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import fields

import structlog

from cloud_server.stage import StageConfig
from service.settings import ENVIRONMENT_PREFIX

STOP_WITHIN_S = 5.0
"""Time a stage has to end before it is killed."""

KILLED_WITHIN_S = 10.0
"""Time the system has to end a killed stage: one that hangs in a driver may stay for ever."""

log = structlog.get_logger()


def command_line(config: StageConfig) -> list[str]:
    """The arguments of a stage's process; nothing in them is secret."""
    flags = [f"--{each.name.replace('_', '-')}={getattr(config, each.name)}" for each in fields(config)]
    return [sys.executable, "-m", "cloud_server.stage", *flags]


class StageProcesses:
    """Stages 1 and up.

    Args:
        on_end: called with what happened, on a thread, whenever one of the processes has ended.
    """

    def __init__(self, on_end: Callable[[str], None]) -> None:
        self._on_end = on_end
        self._processes: list[subprocess.Popen[bytes]] = []
        self._watchers: list[threading.Thread] = []

    def start(self, configs: Sequence[StageConfig]) -> None:
        """Start a process for each."""
        # The cloud server's own settings, its credential among them, are no business of a stage.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
        for config in configs:
            # Ctrl-C in the terminal reaches only the cloud server, which then stops in order.
            process = subprocess.Popen(
                command_line(config), stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )
            self._processes.append(process)
            watcher = threading.Thread(
                target=self._watch, args=(process, config.rank), name=f"watch-{config.rank}", daemon=True
            )
            self._watchers.append(watcher)
            watcher.start()

    @property
    def pids(self) -> list[int]:
        """Of all that were started, by rank."""
        return [process.pid for process in self._processes]

    def terminate(self) -> None:
        """Ask all to end; returns at once."""
        for process in self._processes:
            process.terminate()

    def stop(self) -> None:
        """End all and wait for it, but not for ever: none of them can write to this process's memory."""
        self.terminate()
        deadline = time.monotonic() + STOP_WITHIN_S
        for process, watcher in zip(self._processes, self._watchers, strict=True):
            watcher.join(max(0.0, deadline - time.monotonic()))
            if watcher.is_alive():
                process.kill()
        deadline = time.monotonic() + KILLED_WITHIN_S
        for process, watcher in zip(self._processes, self._watchers, strict=True):
            watcher.join(max(0.0, deadline - time.monotonic()))
            if watcher.is_alive():
                log.error("a killed stage does not end", pid=process.pid)

    def _watch(self, process: subprocess.Popen[bytes], rank: int) -> None:
        status = process.wait()
        self._on_end(f"stage {rank} ended with status {status}")
