"""How much memory the paged KV cache may take: what is free once the layers are loaded, less room for the steps."""

from __future__ import annotations

import os
from pathlib import Path

import torch

SHARE = 0.5
"""Part of the free memory that becomes pages; the rest is for hidden states, frames and other processes."""

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
            free = min(free, int(limit.read_text()) - int(usage.read_text()))
    return max(0, free)


def page_count(free: int, page_bytes: int, most: int) -> int:
    """Pages in ``SHARE`` of ``free`` bytes, at most ``most``, at least one."""
    return max(1, min(most, int(free * SHARE) // max(1, page_bytes)))


def _available() -> int:
    path = Path("/proc/meminfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
