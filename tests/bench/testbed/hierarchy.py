"""Where cgroups are made on this machine: below the cgroup of this process, so that limits on the whole stay in force.

With v1 each controller has a hierarchy. With v2 there is one, and its root is used: a cgroup with processes cannot have
others below it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.testbed.cgroups import HostGroup, HostGroupV1, HostGroupV2

CONTROLLERS = ("cpu", "cpuacct", "memory", "blkio")


@dataclass(frozen=True)
class Hierarchy:
    """Where cgroups are made: the folder for each controller, and whether that is v2.

    Attributes:
        mounts: where the hierarchies begin.
    """

    bases: Mapping[str, Path]
    mounts: tuple[Path, ...]
    unified: bool

    def host(self, bed: str, name: str) -> HostGroup:
        """A new host's cgroups."""
        folders = {controller: base / bed / name for controller, base in self.bases.items()}
        if not self.unified:
            return HostGroupV1(folders)
        root = self.bases["cpu"]
        (root / bed).mkdir(exist_ok=True)
        for each in (root, root / bed):
            (each / "cgroup.subtree_control").write_text("+cpu +memory +io")
        return HostGroupV2(folders)

    def find(self, name: re.Pattern[str]) -> list[Path]:
        """All cgroups whose name matches, below whichever other."""
        every = (Path(above) / each for mount in self.mounts for above, names, _ in os.walk(mount) for each in names)
        return [each for each in every if name.fullmatch(each.name)]


def find_hierarchy(mounts: str, own: str) -> Hierarchy:
    """This machine's hierarchy.

    Args:
        mounts: what ``/proc/self/mounts`` says; ``own``: what ``/proc/self/cgroup`` says.

    Raises:
        LookupError: with what is missing.
    """
    found: dict[str, Path] = {}
    lines = [line.split() for line in mounts.splitlines()]
    paths = {
        name: path for _, names, path in (line.split(":", 2) for line in own.splitlines()) for name in names.split(",")
    }
    for _, folder, kind, options, *_ in lines:
        for controller in set(options.split(",")) & set(CONTROLLERS) if kind == "cgroup" else ():
            found.setdefault(controller, Path(folder))
    if set(found) == set(CONTROLLERS):
        below = {name: mount / paths.get(name, "/").lstrip("/") for name, mount in found.items()}
        # In a container the mount may begin at the container's own cgroup, which is named as the host sees it.
        bases = {name: folder if folder.is_dir() else found[name] for name, folder in below.items()}
        return Hierarchy(bases, tuple(sorted(set(found.values()))), False)
    for _, folder, kind, *_ in lines:
        if kind == "cgroup2" and _offers(Path(folder), "cpu", "memory", "io"):
            return Hierarchy(dict.fromkeys(CONTROLLERS, Path(folder)), (Path(folder),), True)
    missing = ", ".join(sorted(set(CONTROLLERS) - set(found)))
    raise LookupError(f"neither cgroup v2 with cpu, memory and io is mounted, nor these controllers of v1: {missing}")


def this_hierarchy() -> Hierarchy:
    """The same, of the machine this runs on."""
    return find_hierarchy(Path("/proc/self/mounts").read_text(), Path("/proc/self/cgroup").read_text())


def _offers(folder: Path, *controllers: str) -> bool:
    return set(controllers) <= set((folder / "cgroup.controllers").read_text().split())
