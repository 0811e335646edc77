"""The devices that are measured, as processes on a testbed: six hosts with a quota and a port each, and a terminal.

with Devices(folder, 16_000) as devices:
    devices.set_quotas([0.12] * 6)
    devices.set_ports(1.7)
    result = devices.run(names, job)
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import msgspec
from bench.edge.job import Job, LinksJob, ProductsJob, Result, TrialJob
from bench.streamed.told import DeviceFailed, Told
from bench.testbed import scenario as scenarios
from bench.testbed.bed import Testbed
from bench.testbed.machine import MachineWatch
from bench.testbed.processes import environment
from bench.testbed.scenario import load

from device_agent.planning.table import Table
from device_agent.profiling.links import LinksMeasured

SCENARIO = Path(str(scenarios.__file__)).parent / "scenarios" / "edge.toml"
TERMINAL = "terminal"
DEVICES = tuple(f"device-{number}" for number in range(1, 7))
RUN_WITHIN_S = 900.0

TRIAL = 64
"""Products: about 0.1 s of CPU."""

PERIOD_US = 1000
"""Of quotas: the shortest in which a device's share is the 1000 us that the kernel demands. Who begins in the middle of
a period computes at a full core's speed first, and a barrier waits for who begins last."""


class Devices:
    """A context manager. Whoever takes no part in a job uses up its quota meanwhile.

    Args:
        folder: for logs.
        packet: bytes of a full packet: what one costs the devices' quotas pay, whatever its size, and an idle port lets
            one through early.
        count: of devices that are started.
    """

    def __init__(self, folder: Path, packet: int, count: int = len(DEVICES)) -> None:
        self._folder, self._packet, self._started = folder, packet, DEVICES[:count]
        self._stack = ExitStack()
        self.quotas = [1.0] * len(DEVICES)

    def __enter__(self) -> Devices:
        with ExitStack() as stack:
            for core in sorted(os.sched_getaffinity(0)):
                words = [sys.executable, "-m", "bench.edge.ticks", f"{core}"]
                stack.callback(_ended, subprocess.Popen(words, stdin=subprocess.PIPE, env=environment({})))
            self._bed = stack.enter_context(
                Testbed(load(SCENARIO, {"mb_s": "1", "packet": f"{self._packet}"}), self._folder)
            )
            log = self._log = stack.enter_context((self._folder / "members.log").open("ab"))
            where = self._bed.port(TERMINAL).address
            portal = self._spawn(TERMINAL, log, "bench.edge.portal", where)
            self._told = Told(portal, "the portal", self._folder)
            self._told.hear(60.0)
            cores = sorted(os.sched_getaffinity(0))
            self._burners = {}
            for at, name in enumerate(self._started):
                own = f"{cores[at % len(cores)]}"
                self._spawn(name, log, "bench.edge.member", name, where, own)
                self._burners[name] = self._spawn(name, log, "bench.edge.burn", own)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def set_quotas(self, quotas: Sequence[float]) -> None:
        """Cores of each device while jobs are done; those that are not named get none and do nothing."""
        self.quotas = [*quotas, *[0.0] * (len(DEVICES) - len(quotas))]

    def set_ports(self, mb_s: float) -> None:
        """Of every device and the terminal, each way, in 10^6 bytes a second; 0: as fast as the machine is."""
        for name in (TERMINAL, *DEVICES):
            self._bed.port(name).set(mb_s, mb_s)

    def run(self, names: Sequence[str], job: Job) -> tuple[Result, dict[str, Any]]:
        """A job on these devices, and how the machine was meanwhile. Raises DeviceFailed."""
        said, watched = self._done(names, job)
        result = msgspec.convert(said, Result)
        if result.failure:
            raise DeviceFailed(result.failure)
        return result, watched

    def alone(self, name: str, python: str, module: str, job: object) -> tuple[Any, dict[str, Any]]:
        """A job for another program on one device, under an interpreter of its own: what it says, as `run`'s members
        do, and how the machine was meanwhile. Raises DeviceFailed."""
        for each in DEVICES:
            self._bed.host(each).lift_quota()
        cores = sorted(os.sched_getaffinity(0))
        core = f"{cores[DEVICES.index(name) % len(cores)]}"
        process = self._spawn(name, self._log, module, core, python=python)
        try:
            told = Told(process, module, self._folder)
            told.say(job)
            return self._watched([name], told)
        finally:
            process.kill()
            process.wait()

    def links(self, names: Sequence[str]) -> list[LinksMeasured]:
        """What each of these devices measures of its links, under its quota, while all others use up theirs."""
        said, _ = self._done(names, LinksJob((TERMINAL, *names)))
        return msgspec.convert(said, list[LinksMeasured])

    def products(self, names: Sequence[str], job: ProductsJob) -> list[dict[str, Table]]:
        """What each of these devices takes for the parts of a layer, in CPU seconds: under its quota, all at once."""
        said, _ = self._done(names, job)
        return msgspec.convert(said, list[dict[str, Table]])

    def trial(self, names: Sequence[str]) -> list[float]:
        """CPU seconds that the same products take each of these devices now, in the same way."""
        said, _ = self._done(names, TrialJob(TRIAL))
        return msgspec.convert(said, list[float])

    def _done(self, names: Sequence[str], job: Job | LinksJob | ProductsJob | TrialJob) -> tuple[Any, dict[str, Any]]:
        for name in DEVICES:
            self._bed.host(name).lift_quota()
        self._told.say((list(names), job))
        return self._watched(names, self._told)

    def _watched(self, names: Sequence[str], told: Told) -> tuple[Any, dict[str, Any]]:
        """What is said once all have loaded, have their quotas and have begun."""
        if not told.hear(RUN_WITHIN_S).get("loaded"):
            raise DeviceFailed("the members did not come")
        quotas = {name: cores for name, cores in zip(DEVICES, self.quotas, strict=True) if cores}
        for name, cores in quotas.items():
            self._bed.host(name).set_cores(cores, PERIOD_US)
        others = [name for name in quotas if name not in names and name in self._started]
        self._tell(others, "burn")
        watch = MachineWatch(quotas, lambda: {name: self._bed.usage(name) for name in quotas})
        try:
            with watch:
                told.say("begin")
                said = told.hear(RUN_WITHIN_S)
        finally:
            self._tell(others, "rest")
        return said, asdict(watch.report())

    def _spawn(self, host: str, log: IO[bytes], *words: str, python: str = sys.executable) -> subprocess.Popen[str]:
        popen: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
        return self._bed.spawn(host, [python, "-m", *words], env=environment({}), **popen)

    def _tell(self, names: Sequence[str], what: str) -> None:
        """The burners of these devices "burn" or "rest"."""
        for name in names:
            tell(self._burners[name], what)


def _ended(process: subprocess.Popen[bytes]) -> None:
    """Its input is over, and so is it."""
    process.communicate(timeout=5.0)
    if process.returncode:
        raise DeviceFailed(f"a tick ended with {process.returncode}")


def tell(process: subprocess.Popen[str], line: str) -> None:
    """A line for a process."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
