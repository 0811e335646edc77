"""Real processes for tests, started with their real command lines and ended by their own pid."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import httpx

ROOT = Path(__file__).resolve().parents[1]
START_WITHIN_S = 120.0
END_WITHIN_S = 60.0
STOP_WITHIN_S = 20.0
RUNS_S = 0.01


def with_paths(root: Path = ROOT, /, **more: str) -> dict[str, str]:
    """The environment of a process that finds the product and the tests of a checkout, and computes on one thread."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}", **more}


def printed_by(module: str, *arguments: str, within_s: float = 900.0) -> tuple[str, str]:
    """``python -m module arguments`` to its end, which has to be a good one: its standard output and its errors."""
    result = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True, text=True, timeout=within_s, cwd=ROOT, env=with_paths(),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr


def stop_all_threads(pid: int) -> None:
    """SIGSTOP, and wait until it holds: on a busy machine a process goes on for a moment with its other threads.

    Raises AssertionError where it does not stop, ProcessLookupError where there is no such process.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + STOP_WITHIN_S
    while not all(_stopped(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        time.sleep(0.001)


def _stopped(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:  # It has ended meanwhile.
        return True


@contextmanager
def slowed(pid: int, times: int) -> Iterator[None]:
    """A process that takes about so many times as long for everything: it stands still most of the time."""
    over = threading.Event()

    def stop_and_go() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(RUNS_S * (times - 1))
            os.kill(pid, signal.SIGCONT)
            over.wait(RUNS_S)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        os.kill(pid, signal.SIGCONT)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """``python -m module arguments`` of the checkout ``root``, its output in a file; a context manager that ends it."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        log: Path,
        port: int = 0,
        environment: dict[str, str] | None = None,
        scheme: str = "http",
        root: Path = ROOT,
    ) -> None:
        self.log = log
        self._root = root
        self.port = port
        self._arguments = [sys.executable, "-m", module, *arguments]
        self._health = f"{scheme}://127.0.0.1:{port}/health" if port else None
        self._environment = with_paths(root, **(environment or {}))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Process:
        """Start without waiting."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self._arguments,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                cwd=self._root,
            )
        return self

    def wait_ready(self) -> Process:
        """Wait until the health address answers 200."""
        assert self.process is not None
        deadline = time.monotonic() + START_WITHIN_S
        while self._health is not None:
            try:
                if httpx.get(self._health, timeout=2.0, trust_env=False, verify=False).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self._arguments} did not start:\n{self.output}")
            time.sleep(0.05)
        return self

    def __enter__(self) -> Process:
        return self.start().wait_ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait; returns the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(END_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"{self._arguments} did not stop:\n{self.output}") from None
        return int(self.process.returncode)

    @property
    def output(self) -> str:
        """All it has printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def cloud_process(
    model: Path, split: int, tail: int, log: Path, *more: str, port: int | None = None, kind: type[Process] = Process
) -> Process:
    """A cloud server for a model; ``kind`` may be one that starts faster."""
    port = port or free_port()
    arguments = ["--model", str(model), "--split", str(split), "--tail", str(tail), "--port", str(port), *more]
    return kind("cloud_server", *arguments, log=log, port=port)
