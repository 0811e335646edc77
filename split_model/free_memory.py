"""How much memory can be taken now: of this machine, this container, or a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

_CACHED = (("total_inactive_file", "total_active_file"), ("inactive_file", "active_file"))
"""What ``memory.stat`` calls the file cache of a control group and all below it, in version 1 and in version 2."""

_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")

_VERSION_1 = "memory.limit_in_bytes", "memory.usage_in_bytes"
_VERSION_2 = "memory.max", "memory.current"


def free_bytes(device: torch.device | str = "cpu") -> int:
    """Bytes that can be taken on ``device`` now, within the limits of this container or service."""
    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = _available()
    for limit, usage in _limits():
        if limit.exists() and usage.exists() and limit.read_text().strip().isdigit():
            used = int(usage.read_text()) - _cached(limit.parent / "memory.stat")
            free = min(free, int(limit.read_text()) - used)
    return max(0, free)


def _limits() -> Iterator[tuple[Path, Path]]:
    """Where limit and usage would stand of each control group that this process is in: its own, and those above it.

    In a container the group's name may be the one outside of it; what the container itself has stands at the root.
    """
    roots = {"": (_GROUPS, _VERSION_2), "memory": (_GROUPS / "memory", _VERSION_1)}
    own = {"": "/", "memory": "/"}
    for line in _OWN_GROUPS.read_text().splitlines() if _OWN_GROUPS.exists() else ():
        _, kinds, group = line.split(":", 2)
        own.update((kind, group) for kind in kinds.split(",") if kind in own)
    for kind, group in own.items():
        root, names = roots[kind]
        inside = Path(group.lstrip("/"))
        for each in (inside, *inside.parents):
            yield root / each / names[0], root / each / names[1]


def _cached(stat: Path) -> int:
    """Bytes of files, such as a checkpoint just read, that count as used and are given up where they are needed."""
    if not stat.exists():
        return 0
    counts = dict(line.split(maxsplit=1) for line in stat.read_text().splitlines() if " " in line)
    for names in _CACHED:
        if names[0] in counts:
            return sum(int(counts.get(name, 0)) for name in names)
    return 0


def _available() -> int:
    path = Path("/proc/meminfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
