"""The processes of a pipeline's stages on this machine: started, watched, ended."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

import structlog

from cloud_server.stages.stage import StageConfig
from service.python_module import python_module
from service.setting_names import ENVIRONMENT_PREFIX
from service.settings import secrets_of, words_of

KILLED_WITHIN_S = 10.0
"""Time the system has to end a killed stage: one that hangs in a driver may stay for ever."""

log = structlog.get_logger()


class StageProcesses:
    """The stages that this process has started.

    Attributes:
        ended: set on a thread once one of the processes has ended: which, and with what status.
    """

    def __init__(self) -> None:
        self.ended: Future[str] = Future()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._watchers: list[threading.Thread] = []

    def start(self, configs: Sequence[StageConfig]) -> None:
        """Start a process for each."""
        # The cloud server's own settings, its credential among them, are no business of a stage.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
        for config in configs:
            # Secrets go by the environment. Ctrl-C reaches only the cloud server, which then stops in order.
            process = subprocess.Popen(
                [*python_module("cloud_server.stages.stage"), *words_of(config, StageConfig)],
                stdin=subprocess.DEVNULL,
                env={**environment, **secrets_of(config)},
                start_new_session=True,
            )
            self._processes.append(process)
            watcher = threading.Thread(
                target=self._watch, args=(process, config.seat), name=f"watch-{config.seat}", daemon=True
            )
            self._watchers.append(watcher)
            watcher.start()

    @property
    def pids(self) -> list[int]:
        """Of all that were started, by rank."""
        return [process.pid for process in self._processes]

    def terminate(self) -> None:
        """End all; returns at once. Nothing of theirs is worth a farewell, and to SIGTERM they do not listen."""
        for process in self._processes:
            process.kill()

    def stop(self) -> None:
        """End all and wait for it, but not for ever: none of them can write to this process's memory."""
        self.terminate()
        deadline = time.monotonic() + KILLED_WITHIN_S
        for process, watcher in zip(self._processes, self._watchers, strict=True):
            watcher.join(max(0.0, deadline - time.monotonic()))
            if watcher.is_alive():
                log.error("a killed stage does not end", pid=process.pid)

    def _watch(self, process: subprocess.Popen[bytes], seat: int) -> None:
        status = process.wait()
        with suppress(InvalidStateError):  # Another has ended before.
            self.ended.set_result(f"stage {seat} ended with status {status}")
