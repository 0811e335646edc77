"""Memory in large pages for the processes that hold layers: a step streams all weights, and small pages slow that down.

glibc does it when an environment variable says so before a process starts. Where the variable means nothing (another
libc, an older one, large pages switched off), nothing happens.
"""

from __future__ import annotations

import os

VARIABLE = "GLIBC_TUNABLES"
HUGE = "glibc.malloc.hugetlb=1"


def with_huge_pages() -> dict[str, str]:
    """This process's environment for one that holds layers; what the user has set of the kind stays."""
    before = os.environ.get(VARIABLE, "")
    if "glibc.malloc.hugetlb" in before:
        return dict(os.environ)
    return {**os.environ, VARIABLE: f"{before}:{HUGE}" if before else HUGE}
