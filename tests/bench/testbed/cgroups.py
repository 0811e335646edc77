"""Quotas and limits of one host: a cgroup in every controller (v1) or one in the unified hierarchy (v2).

Each program has a *leaf* below its host's cgroup, which says what belongs to it, whatever it starts. A leaf's processes
can be set apart, each in a cgroup below the leaf with a quota of its own. Of v2 only what is written to which file is
tested: no machine at hand has it.

CFS gives a quota per period. Both are kept short, so that a slow machine is slow evenly and not by halves of a second;
what is exact is the average, while a burst of a millisecond or two runs at full speed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.testbed.leaf import Leaf

PERIOD_US = 10_000
"""With half of it a lone thread gets a tenth less than its quota, with twice of it no more."""
LEAST_QUOTA_US = 1000
"""The kernel takes no smaller one."""

VIRTUAL_DISKS = ("loop", "ram", "zram")


@dataclass(frozen=True)
class Usage:
    """What a host has used: CPU seconds, seconds its threads were held back by the quota (all of them added up), and
    the most bytes of memory, files in the page cache included."""

    cpu_s: float
    throttled_s: float
    memory_peak_bytes: int


def quota_of(cores: float, period_us: int = PERIOD_US) -> tuple[int, int]:
    """Quota and period in microseconds that give ``cores`` of CPU, above 0; the period is as short as the kernel allows
    where ``period_us`` is shorter."""
    period = max(period_us, math.ceil(LEAST_QUOTA_US / cores))
    return max(LEAST_QUOTA_US, round(cores * period)), period


def disks() -> list[str]:
    """All disks of this machine as ``major:minor``, those made of memory or files not."""
    blocks = (each for each in Path("/sys/block").glob("*") if not each.name.startswith(VIRTUAL_DISKS))
    return [(each / "dev").read_text().strip() for each in blocks]


class HostGroup(ABC):
    """One host's cgroups; made at once.

    Args:
        folders: by controller; those of several may be one.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self.folders = folders
        for each in self.folders.values():
            each.mkdir(parents=True, exist_ok=True)

    def leaf(self, name: str) -> Leaf:
        """A new place for a program."""
        above = self.folders["cpu"]
        folder = above / name
        folder.mkdir()
        others = {each for each in self.folders.values() if each != above}
        return Leaf(folder, [each / "cgroup.procs" for each in (folder, *sorted(others))])

    def set_apart(self, leaf: Leaf, cores: float) -> None:
        """Give every process of a leaf a CPU quota of its own, which is what a further machine would be; what it starts
        later is on the same one. The host's own quota has to be at least as large, or none. Raises OSError where one of
        them has ended."""
        apart = []
        for number, pid in enumerate(leaf.pids(), 1):
            apart.append(leaf.folder / f"process-{number}")
            apart[-1].mkdir()
            (apart[-1] / "cgroup.procs").write_text(str(pid))
        self._hand_down(leaf)
        for each in apart:
            self._set_quota(each, cores)

    def set_cores(self, cores: float, period_us: int = PERIOD_US) -> None:
        """The CPU quota from now on; 0 is none."""
        self._set_quota(self.folders["cpu"], cores, period_us)

    def _throttled(self, name: str) -> int:
        """The sum of this count over the host and what is set apart on it, as long as that runs."""
        cpu = self.folders["cpu"]
        return sum(_counts(each).get(name, 0) for each in (cpu / "cpu.stat", *cpu.glob("*/process-*/cpu.stat")))

    @abstractmethod
    def _set_quota(self, folder: Path, cores: float, period_us: int = PERIOD_US) -> None:
        """The quota of a cgroup of the CPU's controller; 0 is none."""

    @abstractmethod
    def _hand_down(self, leaf: Leaf) -> None:
        """Let cgroups below a leaf, which has no process of its own any more, have quotas."""

    @abstractmethod
    def set_memory(self, megabytes: int) -> None:
        """The memory limit in 10^6 bytes; a program that needs more is killed."""

    @abstractmethod
    def set_disk(self, megabytes_s: float, disks: Iterable[str]) -> None:
        """The bandwidth of reading and of writing, in 10^6 bytes a second, for each disk (``major:minor``). With v1
        what is written through the page cache is not held back."""

    @abstractmethod
    def usage(self) -> Usage:
        """What it has used since it was made."""


class HostGroupV1(HostGroup):
    """With a hierarchy for each controller."""

    def _set_quota(self, folder: Path, cores: float, period_us: int = PERIOD_US) -> None:
        quota, period = quota_of(cores, period_us) if cores else (-1, PERIOD_US)
        if int((folder / "cpu.cfs_period_us").read_text()) != period:
            (folder / "cpu.cfs_quota_us").write_text("-1")  # The old quota may not fit the new period.
            (folder / "cpu.cfs_period_us").write_text(str(period))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))

    def _hand_down(self, leaf: Leaf) -> None:
        pass  # They have them anyhow.

    def set_memory(self, megabytes: int) -> None:
        memory = self.folders["memory"]
        (memory / "memory.limit_in_bytes").write_text(str(megabytes * 10**6))
        with suppress(FileNotFoundError):  # Only where the kernel counts swap.
            (memory / "memory.memsw.limit_in_bytes").write_text(str(megabytes * 10**6))

    def set_disk(self, megabytes_s: float, disks: Iterable[str]) -> None:
        for disk in disks:
            for way in ("read", "write"):
                file = self.folders["blkio"] / f"blkio.throttle.{way}_bps_device"
                file.write_text(f"{disk} {round(megabytes_s * 10**6)}")

    def usage(self) -> Usage:
        spent = int((self.folders["cpuacct"] / "cpuacct.usage").read_text())
        peak = int((self.folders["memory"] / "memory.max_usage_in_bytes").read_text())
        return Usage(spent / 1e9, self._throttled("throttled_time") / 1e9, peak)


class HostGroupV2(HostGroup):
    """With one hierarchy for all controllers."""

    def _set_quota(self, folder: Path, cores: float, period_us: int = PERIOD_US) -> None:
        quota, period = quota_of(cores, period_us) if cores else ("max", PERIOD_US)
        (folder / "cpu.max").write_text(f"{quota} {period}")

    def _hand_down(self, leaf: Leaf) -> None:
        for each in (self.folders["cpu"], leaf.folder):
            (each / "cgroup.subtree_control").write_text("+cpu")

    def set_memory(self, megabytes: int) -> None:
        (self.folders["memory"] / "memory.max").write_text(str(megabytes * 10**6))
        with suppress(FileNotFoundError):
            (self.folders["memory"] / "memory.swap.max").write_text("0")

    def set_disk(self, megabytes_s: float, disks: Iterable[str]) -> None:
        rate = round(megabytes_s * 10**6)
        for disk in disks:
            (self.folders["blkio"] / "io.max").write_text(f"{disk} rbps={rate} wbps={rate}")

    def usage(self) -> Usage:
        stat = _counts(self.folders["cpu"] / "cpu.stat")
        peak = int((self.folders["memory"] / "memory.peak").read_text())
        return Usage(stat["usage_usec"] / 1e6, self._throttled("throttled_usec") / 1e6, peak)


def _counts(file: Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())}
