"""How much of this machine's memory can be taken now, within the limits of this container or service. No torch."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

from split_model.control_groups import own_groups

VM_STAT_WITHIN_S = 10.0

_CACHED = (("total_inactive_file", "total_active_file"), ("inactive_file", "active_file"))
"""What ``memory.stat`` calls the file cache of a control group and all below it, in version 1 and in version 2."""

_LIMITS = (("memory.limit_in_bytes", "memory.usage_in_bytes"), ("memory.max", "memory.current"))
"""What limit and usage of a control group are called, in version 1 and in version 2."""


def free_host_bytes() -> int:
    """Bytes that can be taken now."""
    free = _available()
    for group, (limit_name, usage_name) in product(own_groups("memory"), _LIMITS):
        limit, usage = group / limit_name, group / usage_name
        if limit.exists() and usage.exists() and limit.read_text().strip().isdigit():
            used = int(usage.read_text()) - _cached(group / "memory.stat")
            free = min(free, int(limit.read_text()) - used)
    return max(0, free)


def give_back() -> None:
    """What this process has freed, to the system: the C library keeps it for later, unless it is told to trim its
    heaps."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # GNU's has it.
    if trim is not None:
        trim(0)


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
    if sys.platform == "darwin":
        said = subprocess.run(["vm_stat"], capture_output=True, text=True, timeout=VM_STAT_WITHIN_S).stdout
        return said_by_vm_stat(said)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def said_by_vm_stat(said: str) -> int:
    """Bytes that can be taken, as macOS' ``vm_stat`` says: pages that are free, and those that are given up first."""
    page = int(said.partition("page size of ")[2].split()[0])
    pages = dict(line.split(":") for line in said.splitlines()[1:] if ":" in line)
    return page * sum(int(pages[f"Pages {each}"].strip(" .")) for each in ("free", "inactive", "speculative"))
