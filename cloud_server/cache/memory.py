"""The memory of the paged KV cache: as much as is free once the layers are loaded, less room for the steps, and taken
from the system as it is written to."""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch

SHARE = 0.5
"""Part of the free memory that becomes pages; the rest is for hidden states, frames and other processes."""


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
