"""The memory of the paged KV cache: as much as is free once the layers are loaded, less room for the steps, and taken
from the system as it is written to."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path

import torch

SHARE = 0.5
"""Part of the free memory that becomes pages; the rest is for hidden states, frames and other processes."""

_CACHED = (("total_inactive_file", "total_active_file"), ("inactive_file", "active_file"))
"""What ``memory.stat`` calls the file cache of a control group and all below it, in version 1 and in version 2."""

_CGROUP_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


def free_bytes(device: torch.device) -> int:
    """Bytes that can be taken on ``device`` now, in this container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = _available()
    for limit, usage in _CGROUP_LIMITS:
        if limit.exists() and usage.exists() and limit.read_text().strip().isdigit():
            used = int(usage.read_text()) - _cached(limit.parent / "memory.stat")
            free = min(free, int(limit.read_text()) - used)
    return max(0, free)


def page_count(free: int, page_bytes: int, most: int) -> int:
    """Pages in ``SHARE`` of ``free`` bytes, at most ``most``, at least one."""
    return max(1, min(most, int(free * SHARE) // max(1, page_bytes)))


def in_small_pages(count: int, dtype: torch.dtype) -> torch.Tensor:
    """``[count]`` zeros of the host's memory that cost nothing until they are written, and then by small pages.

    Weights are faster in large pages. But the keys of a few positions lie in as many places as there are layers and
    heads: with large pages the first prompt, and each that begins where none has been, would wait until the system has
    cleared 2 MB at every one of them, which takes seconds.

    Raises MemoryError where there is no such memory.
    """
    if not count:
        return torch.empty(0, dtype=dtype)
    try:
        memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{count * dtype.itemsize} bytes") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # Linux has it.
        with suppress(OSError):  # A kernel that was built without large pages.
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype)


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
