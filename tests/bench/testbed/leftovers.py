"""Whose bed is whose: what a bed that was killed has left behind is found and removed, and a live one is never touched.

Everything of a bed has its *prefix* in its name, ``tb`` and the number of the process that owns it; always as long, so
that none is the beginning of another. A file says of each bed when its owner was started, since numbers are used again.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.testbed.hierarchy import this_hierarchy
from bench.testbed.leaf import remove
from bench.testbed.network import remove_network
from bench.testbed.own_disk import FOLDER as DISKS
from bench.testbed.own_disk import remove_disks

STATES = Path("/run/trilby-testbed")
NAMESPACES = Path("/run/netns")
INTERFACES = Path("/sys/class/net")
NAME = re.compile(r"(tb[0-9]{7})(-.*)?")


def prefix_of(pid: int) -> str:
    """What all names begin with of the bed that a process owns."""
    return f"tb{pid:07d}"


def begun(pid: int) -> str:
    """What tells a process from all others that had or will have its number: this boot, and clock ticks since; '' where
    it runs no more."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *rest = status[status.rindex(")") + 2 :].split()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return "" if state in "ZX" else f"{boot} {rest[18]}"


def claim(states: Path = STATES) -> str:
    """Note that this process has a bed from now on; its prefix. Raises RuntimeError where it has one already."""
    prefix = prefix_of(os.getpid())
    with _alone(states):
        if owned(prefix, states):
            raise RuntimeError("this process has a testbed already; one at a time")
        note = {"pid": os.getpid(), "begun": begun(os.getpid())}
        (states / f"{prefix}.json").write_text(json.dumps(note))
    return prefix


def release(prefix: str, states: Path = STATES) -> None:
    """Note that the bed is gone."""
    (states / f"{prefix}.json").unlink(missing_ok=True)


def owned(prefix: str, states: Path = STATES) -> bool:
    """Whether the owner of a bed still runs. Of a bed without a file that is any process with its number, but this
    one, which would have written the file."""
    pid = int(prefix[2:])
    try:
        note = json.loads((states / f"{prefix}.json").read_text())
    except (OSError, ValueError):
        return pid != os.getpid() and begun(pid) != ""
    return isinstance(note, dict) and bool(begun(pid)) and note.get("begun") == begun(pid)


def clean(states: Path = STATES) -> list[str]:
    """Remove all of every bed whose owner is gone, processes, cgroups, disks and networks; their prefixes."""
    with _alone(states):
        dead = [prefix for prefix in _beds(states) if not owned(prefix, states)]
        for prefix in dead:
            remove_bed(prefix)
            release(prefix, states)
    return dead


def remove_bed(prefix: str) -> None:
    """Remove all of one bed: processes first, since they hold on to the rest."""
    for cgroup in this_hierarchy().find(re.compile(prefix)):
        remove(cgroup)
    remove_disks(prefix)
    remove_network(prefix)


def _beds(states: Path) -> list[str]:
    folders = [folder for folder in (NAMESPACES, INTERFACES, DISKS, states) if folder.is_dir()]
    names = [each.name.removesuffix(".json") for folder in folders for each in folder.iterdir()]
    names += [each.name for each in this_hierarchy().find(NAME)]
    return sorted({match[1] for match in map(NAME.fullmatch, names) if match})


@contextmanager
def _alone(states: Path) -> Iterator[None]:
    """Only one process at a time looks and removes."""
    states.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (states / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
