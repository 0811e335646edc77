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
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from processes import ROOT, Process

from service import children
from service.lines import LineStream
from split_model import warming

_FORKS = multiprocessing.get_context("forkserver")
_PROGRAMS = (
    *("gateway.__main__", "cloud_server.__main__", "device_agent.__main__", "device_agent.group.member"),
    "service.command",
)
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


def forked_serve(arguments: Sequence[str], log: Path, environment: dict[str, str], ignore_ctrl_c: bool) -> Any:
    """``trilby serve`` with these arguments, all of whose processes are forked; what ``subprocess.Popen`` would be."""
    given = (["serve", *arguments], str(log), environment, ignore_ctrl_c)
    child = _FORKS.Process(target=_serve, args=given, daemon=True)
    child.start()
    return _Child(child)


class ForkedStage(_Child):
    """``subprocess.Popen`` of a stage of a cloud server, forked; what it says is lost."""

    def __init__(self, command: Sequence[str], *, env: dict[str, str], **how: Any) -> None:
        module, *arguments = command[3:]
        given = (module, arguments, os.devnull, dict(env), ForkedProcess.warms)
        child = _FORKS.Process(target=_run, args=given, daemon=True)
        child.start()
        super().__init__(child)

    def kill(self) -> None:
        """kill -9; another thread waits for the exit status, and only one may ask for it."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class _Grandchild:
    """``subprocess.Popen`` of ``python -m module …`` in a process that may be forked: it has imported everything, has
    computed nothing, and its only other threads write lines."""

    def __init__(
        self, command: Sequence[str], *, env: dict[str, str], preexec_fn: Callable[[], None], **how: Any
    ) -> None:
        module, *arguments = command[3:]
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        status = 1
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            preexec_fn()
            # Those of the parent are behind threads that are not here.
            sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
            _begin(module, arguments, env)
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = 60.0) -> int:
        """Wait for its end; returns the exit status. Raises ``subprocess.TimeoutExpired``."""
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return status


def _serve(arguments: list[str], log: str, environment: dict[str, str], ignore_ctrl_c: bool) -> None:
    """``trilby serve``, which forks its processes instead of starting them."""
    if ignore_ctrl_c:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    forks = SimpleNamespace(Popen=_Grandchild, **{each: getattr(subprocess, each) for each in _USED})
    vars(children)["subprocess"] = forks
    _run("service.command", arguments, log, environment, False)


_USED = ("DEVNULL", "TimeoutExpired")
"""What else ``trilby serve`` needs of that module."""


def _run(module: str, arguments: list[str], log: str, environment: dict[str, str], warms: bool) -> None:
    """``python -m module arguments``, its output in a file."""
    if not warms:
        warming.WARM_UP_S = 0.0  # type: ignore[misc]
    with open(log, "ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    _begin(module, arguments, environment)


def _begin(module: str, arguments: list[str], environment: dict[str, str]) -> None:
    """What a program does, with another's environment."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
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
