"""The devices of one setting: hosts with a quota, a memory limit, a port and a disk of their own, and their processes.

The processes stay from cell to cell, as a user's would: what was measured of a device, and what was written to its disk
in the order in which it is streamed, is there from the first cell on.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from bench.edge.job import PORT
from bench.streamed.portal import Job, Result
from bench.streamed.told import PIPES, DeviceFailed, Told, member_environment
from bench.testbed import scenario as scenarios
from bench.testbed.bed import Testbed
from bench.testbed.scenario import load

SCENARIO = Path(str(scenarios.__file__)).parent / "scenarios" / "lime.toml"
READY_WITHIN_S, JOB_WITHIN_S = 120.0, 600.0
SPARE = 96 << 20
"""Bytes of the limit for what is in no plan: what is read while layers are loaded, and the products' own buffers."""

IDLE_FOR_S = 2.0
"""A process that has used no CPU for so long has begun."""


class Setting:
    """A context manager.

    Args:
        checkpoint: of the model, which all can read.
        budgets: bytes of memory for weights, keys and values of each device.
        cores: the quota of each.
        disk_mb_s: of each disk, 10^6 bytes a second.
    """

    def __init__(
        self, folder: Path, checkpoint: Path, budgets: Sequence[int], cores: Sequence[float], disk_mb_s: float
    ) -> None:
        self._folder, self._checkpoint = folder, checkpoint
        self._budgets, self._cores, self._disk_mb_s = list(budgets), list(cores), disk_mb_s
        self.names = [f"device-{number}" for number in range(1, len(budgets) + 1)]
        self.limits: list[int] = []
        """Bytes of memory that each may have, once it has begun."""
        self._pids: list[int] = []

    def __enter__(self) -> Setting:
        with ExitStack() as stack:
            variables = {"mb_s": "0", "disk_mb_s": f"{self._disk_mb_s:g}"}
            self._bed = stack.enter_context(Testbed(load(SCENARIO, variables), self._folder))
            log = stack.enter_context((self._folder / "devices.log").open("ab"))
            where = self._bed.port(self.names[0]).address
            words = ["bench.streamed.portal", where, str(self._checkpoint), str(self._budgets[0])]
            portal = self._spawn(self.names[0], words, stderr=log, **PIPES)
            self._portal = Told(portal, "the portal", self._folder)
            joining = ["device_agent.group.member", "--join", f"{where}:{PORT}", "--model", str(self._checkpoint)]
            others = [
                self._spawn(
                    name,
                    [*joining, "--name", name, "--threads", "1", "--memory", f"{budget // 10**6}MB"],
                    stdout=log,
                    stderr=log,
                )
                for name, budget in list(zip(self.names, self._budgets, strict=True))[1:]
            ]
            self._portal.hear(READY_WITHIN_S)
            for process in others:
                _await_idle(process)
            for name, process, budget, cores in zip(
                self.names, [portal, *others], self._budgets, self._cores, strict=True
            ):
                self._pids.append(process.pid)
                self.limits.append(resident(process.pid) + budget + SPARE)
                host = self._bed.host(name)
                host.group.set_memory(self.limits[-1] // 10**6)
                host.set_cores(cores)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def set_ports(self, mb_s: float) -> None:
        """Of every device, each way, in 10^6 bytes a second; 0: as fast as the machine is."""
        for name in self.names:
            self._bed.port(name).set(mb_s, mb_s)

    def run(self, job: Job, step: Callable[[int], object] = lambda number: None) -> Result:
        """One job; ``step`` is called behind each token of its first session. Raises DeviceFailed."""
        for pid in self._pids:
            _forget_peak(pid)
        self._portal.say(job)
        while "step" in (said := self._portal.hear(JOB_WITHIN_S)):
            step(said["step"])
        return msgspec.convert(said, Result)

    def peaks(self) -> list[int]:
        """The most bytes of memory that each device's process had in the last job, without the system's cache."""
        return [_status(pid, "VmHWM") for pid in self._pids]

    def _spawn(self, name: str, words: Sequence[str], **popen: Any) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", *words]
        return self._bed.spawn(name, words, env=member_environment(self._bed, name), **popen)


def _await_idle(process: subprocess.Popen[str]) -> None:
    deadline, since, before = time.monotonic() + READY_WITHIN_S, time.monotonic(), -1
    while time.monotonic() - since < IDLE_FOR_S:
        if process.poll() is not None or time.monotonic() > deadline:
            raise DeviceFailed("a member has not begun; see its log")
        spent = _cpu_ticks(process.pid)
        if spent > before + 5:
            since, before = time.monotonic(), spent
        time.sleep(0.1)


def _cpu_ticks(pid: int) -> int:
    words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    return int(words[11]) + int(words[12])


def resident(pid: int) -> int:
    """Bytes of memory that a process has now."""
    return _status(pid, "VmRSS")


def _forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def _status(pid: int, word: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{word}:"))
