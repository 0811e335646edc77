"""Programs on the hosts of a testbed: started in their namespace and cgroup, and gone with all they have started.

The way of a new process is a shell that enters the cgroups, then util-linux: the kernel kills it when its starter ends,
it enters the namespace, and becomes the program, all under one process number.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.testbed.inside import is_ready
from bench.testbed.leaf import Leaf

from service.huge_pages import with_huge_pages

ROOT = Path(__file__).resolve().parents[3]
END_WITHIN_S = 20.0
TAIL_LINES = 30
POLL_S = 0.1

ENTER = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"'


class PartFailed(RuntimeError):
    """A part ended before it was ready, or was not ready in time; the message has the end of its log."""


class Program:
    """One program and what it has started.

    Attributes:
        name: of the part, or what was asked to be run.
        host: where it runs.
        popen: its process.
        log: where its output goes; None where the caller takes it.
        leaf: where its processes are.
    """

    def __init__(self, name: str, host: str, leaf: Leaf, popen: subprocess.Popen[Any], log: Path | None) -> None:
        self.name = name
        self.host = host
        self.popen = popen
        self.log = log
        self.leaf = leaf

    @property
    def runs(self) -> bool:
        """Whether its own process does."""
        return self.popen.poll() is None

    def pids(self) -> list[int]:
        """All its processes."""
        return self.leaf.pids()

    def ask_to_end(self) -> None:
        """SIGTERM to its own process."""
        with suppress(ProcessLookupError):
            self.popen.send_signal(signal.SIGTERM)

    def end(self, deadline: float) -> None:
        """Wait until ``deadline`` (``time.monotonic``) for its process, then kill whatever is left."""
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(max(0.0, deadline - time.monotonic()))
        self.leaf.remove()
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                with suppress(OSError):  # What was never read by the program.
                    pipe.close()

    def failed(self, why: str) -> PartFailed:
        """The error that it did not come up, with the end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:] if self.log is not None else []
        return PartFailed("\n".join([f"{self.name} on {self.host} {why}; the end of {self.log}:", *lines]))


@dataclass(frozen=True)
class Awaited:
    """A program that is ready once ``url``, asked from ``namespace``, answers 200 with ``text`` (a regular expression)
    in the body; at once where ``url`` is ''."""

    program: Program
    namespace: str
    url: str
    text: str


class Placer:
    """Starts programs, all from one thread: the kernel ends them when the thread that began them ends."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="starter")

    def start(self, argv: Sequence[str], namespace: str, leaf: Leaf, popen: Mapping[str, Any]) -> subprocess.Popen[Any]:
        """Start ``argv`` there; ``popen`` is further arguments of ``subprocess.Popen``."""
        whole = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", ENTER, "sh", *map(str, leaf.entrances), "--"]
        whole += ["nsenter", f"--net=/run/netns/{namespace}", "--", *argv]
        # A session of its own: Ctrl-C is for the bench, which ends everything in order.
        arguments = {"cwd": ROOT, "env": environment({}), "start_new_session": True, **popen}
        return self._thread.submit(lambda: subprocess.Popen(whole, **arguments)).result()

    def close(self) -> None:
        """End the thread, and so everything that still runs."""
        self._thread.shutdown()


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """What a part's process has: this one's, one thread, this repository's code, large pages, and ``more``."""
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]))
    return {**with_huge_pages(), "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}


def command_line(words: Sequence[str]) -> list[str]:
    """A part's command line: the first word is a module, or a program's absolute path."""
    return list(words) if os.path.isabs(words[0]) else [sys.executable, "-m", *words]


def end_all(programs: Sequence[Program], within_s: float) -> None:
    """End programs in an orderly way, the last one started first, and kill those that take longer."""
    for program in reversed(programs):
        program.ask_to_end()
    deadline = time.monotonic() + within_s
    for program in reversed(programs):
        program.end(deadline)


def await_ready(awaited: Sequence[Awaited], within_s: float) -> None:
    """Wait until every program is ready.

    Raises:
        PartFailed: one has ended, or is not ready within ``within_s``.
    """
    deadline = time.monotonic() + within_s
    left = [each for each in awaited if each.url]
    while left:
        for each in awaited:
            if not each.program.runs:
                raise each.program.failed(f"ended with status {each.program.popen.returncode}")
        left = [each for each in left if not is_ready(each.namespace, each.url, each.text)]
        if left and time.monotonic() > deadline:
            raise left[0].program.failed(f"was not ready within {within_s:g} s")
        time.sleep(POLL_S if left else 0.0)
