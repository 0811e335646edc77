"""Quotas and limits: what is written where, on folders; what the kernel makes of it is tested with the whole bed."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.testbed.cgroups import HostGroupV1, HostGroupV2, Usage, disks, quota_of
from bench.testbed.hierarchy import CONTROLLERS, find_hierarchy


@pytest.mark.parametrize("cores", [0.001, 0.05, 0.0999, 0.1, 0.24, 0.5, 1.0, 1.7, 64.0])
def test_quotas(cores: float) -> None:
    """A quota is what was asked for within a thousandth of a core, and never smaller than the kernel takes."""
    quota, period = quota_of(cores)
    assert quota / period == pytest.approx(cores, rel=0.01, abs=1e-3)
    assert quota >= 1000 and 1000 <= period <= 1_000_000


def test_version_1(tmp_path: Path) -> None:
    """One folder a controller; limits are in bytes, rates for each disk, and no quota is -1."""
    folders = {name: tmp_path / name / "bed" / "1" for name in CONTROLLERS}
    group = HostGroupV1(folders)
    period, quota = (folders["cpu"] / f"cpu.cfs_{name}_us" for name in ("period", "quota"))
    period.write_text("100000\n")
    group.set_cores(0.25)
    assert (quota.read_text(), period.read_text()) == ("2500", "10000")
    group.set_cores(0)
    assert quota.read_text() == "-1"
    group.set_memory(3)
    assert (folders["memory"] / "memory.limit_in_bytes").read_text() == "3000000"
    group.set_disk(1.5, ["8:0"])
    for way in ("read", "write"):
        assert (folders["blkio"] / f"blkio.throttle.{way}_bps_device").read_text() == "8:0 1500000"
    (folders["cpuacct"] / "cpuacct.usage").write_text("2500000000\n")
    (folders["cpu"] / "cpu.stat").write_text("nr_periods 4\nnr_throttled 2\nthrottled_time 500000000\n")
    (folders["memory"] / "memory.max_usage_in_bytes").write_text("7000\n")
    assert group.usage() == Usage(2.5, 0.5, 7000)
    leaf = group.leaf("program-1")
    assert set(leaf.entrances) == {
        folders["cpu"] / "program-1" / "cgroup.procs", *(folders[name] / "cgroup.procs" for name in CONTROLLERS[1:])
    }  # fmt: skip


def test_processes_apart_in_version_1(tmp_path: Path) -> None:
    """Each has a cgroup below the leaf, with a quota of its own, and the time they are held back is the host's."""
    folders = {name: tmp_path / name / "bed" / "1" for name in CONTROLLERS}
    group = HostGroupV1(folders)
    leaf = group.leaf("program-1")
    (leaf.folder / "cgroup.procs").write_text("12\n13\n")
    new = [leaf.folder / f"process-{number}" for number in (1, 2)]
    made = Path.mkdir

    def with_files(self: Path) -> None:
        made(self)
        (self / "cpu.cfs_period_us").write_text("100000\n")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", with_files)  # As the kernel has them there.
        group.set_apart(leaf, 0.12)
    assert [(each / "cgroup.procs").read_text() for each in new] == ["12", "13"]
    assert {(each / "cpu.cfs_quota_us").read_text() for each in new} == {"1200"}
    assert {(each / "cpu.cfs_period_us").read_text() for each in new} == {"10000"}
    (leaf.folder / "cgroup.procs").write_text("")
    assert sorted(leaf.pids()) == [12, 13]
    for number, each in enumerate((folders["cpu"], *new), 1):
        (each / "cpu.stat").write_text(f"nr_periods 4\nnr_throttled 2\nthrottled_time {number}000000000\n")
    (folders["cpuacct"] / "cpuacct.usage").write_text("2500000000\n")
    (folders["memory"] / "memory.max_usage_in_bytes").write_text("7000\n")
    assert group.usage() == Usage(2.5, 6.0, 7000)


def test_processes_apart_in_version_2(tmp_path: Path) -> None:
    """Quotas are handed down to the leaf, which has no process of its own by then, and below."""
    group = HostGroupV2(dict.fromkeys(CONTROLLERS, tmp_path / "1"))
    leaf = group.leaf("program-1")
    (leaf.folder / "cgroup.procs").write_text("12\n13\n")
    group.set_apart(leaf, 0.12)
    for number, pid in enumerate(("12", "13"), 1):
        own = leaf.folder / f"process-{number}"
        assert ((own / "cgroup.procs").read_text(), (own / "cpu.max").read_text()) == (pid, "1200 10000")
    assert {(each / "cgroup.subtree_control").read_text() for each in (tmp_path / "1", leaf.folder)} == {"+cpu"}


def test_version_2(tmp_path: Path) -> None:
    """One folder for all, with the unified hierarchy's files; a program enters its own leaf and nothing else."""
    group = HostGroupV2(dict.fromkeys(CONTROLLERS, tmp_path / "1"))
    written = tmp_path / "1"
    group.set_cores(0.25)
    assert (written / "cpu.max").read_text() == "2500 10000"
    group.set_cores(0)
    assert (written / "cpu.max").read_text() == "max 10000"
    group.set_memory(3)
    assert (written / "memory.max").read_text() == "3000000"
    group.set_disk(1.5, ["8:0"])
    assert (written / "io.max").read_text() == "8:0 rbps=1500000 wbps=1500000"
    (written / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\nthrottled_usec 500000\n")
    (written / "memory.peak").write_text("7000\n")
    assert group.usage() == Usage(2.5, 0.5, 7000)
    leaf = group.leaf("program-1")
    (written / "program-1" / "cgroup.procs").write_text("12\n0\n13\n")
    assert leaf.entrances == [written / "program-1" / "cgroup.procs"]
    assert leaf.pids() == [12, 13]


def test_hierarchy_of_version_1(tmp_path: Path) -> None:
    """Controllers may share a mount; cgroups are made below this process's own, where that can be seen."""
    own = tmp_path / "memory" / "user" / "1"
    own.mkdir(parents=True)
    mounts = "".join(
        f"cgroup {tmp_path / folder} cgroup rw,relatime,{options} 0 0\n"
        for folder, options in (("cpu,cpuacct", "cpu,cpuacct"), ("memory", "memory"), ("blkio", "blkio"))
    )
    found = find_hierarchy(mounts, "4:memory:/user/1\n3:cpu,cpuacct:/\n2:blkio:/hidden\n0::/\n")
    cpu, blkio = tmp_path / "cpu,cpuacct", tmp_path / "blkio"
    assert not found.unified
    assert found.bases == {"cpu": cpu, "cpuacct": cpu, "memory": own, "blkio": blkio}
    group = found.host("bed", "1")
    assert isinstance(group, HostGroupV1) and group.folders["memory"] == own / "bed" / "1"
    assert len(group.leaf("p").entrances) == 3


def test_hierarchy_of_version_2(tmp_path: Path) -> None:
    """Without the controllers of version 1 it is version 2, whose controllers are handed down to the hosts."""
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    found = find_hierarchy(f"none {tmp_path} cgroup2 rw 0 0\n", "0::/user\n")
    assert found.unified
    group = found.host("bed", "1")
    assert isinstance(group, HostGroupV2) and set(group.folders.values()) == {tmp_path / "bed" / "1"}
    for folder in (tmp_path, tmp_path / "bed"):
        assert (folder / "cgroup.subtree_control").read_text() == "+cpu +memory +io"


def test_no_hierarchy(tmp_path: Path) -> None:
    """What is missing is named; a unified hierarchy without controllers is none."""
    (tmp_path / "cgroup.controllers").write_text("\n")
    mounts = f"none {tmp_path} cgroup2 rw 0 0\ncgroup /c cgroup rw,cpu 0 0\n"
    with pytest.raises(LookupError, match="blkio, cpuacct, memory"):
        find_hierarchy(mounts, "0::/\n")


def test_disks() -> None:
    """Disks are named by their numbers."""
    for each in disks():
        major, minor = map(int, each.split(":"))
        assert major > 0 and minor >= 0
