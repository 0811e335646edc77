"""The control groups that this process is in, which say how much of the machine it may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_OWN = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def own_groups(kind: str) -> Iterator[Path]:
    """The folders of this process's own group and of those above it, which need not be there.

    Of version 2, and of version 1 for the resource `kind` ("memory", "cpu"). In a container the group's name may be the
    one outside of it; what the container itself has stands at the root.
    """
    roots = {"": _ROOT, kind: _ROOT / kind}
    own = dict.fromkeys(roots, "/")
    for line in _OWN.read_text().splitlines() if _OWN.exists() else ():
        _, kinds, group = line.split(":", 2)
        own.update((each, group) for each in kinds.split(",") if each in own)
    for each, group in own.items():
        inside = Path(group.lstrip("/"))
        yield from (roots[each] / folder for folder in (inside, *inside.parents))
