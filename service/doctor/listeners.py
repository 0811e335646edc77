"""Which program listens on a port of this machine, where the kernel tells (Linux), and of whom this user may know."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_TABLES: Final = ("net/tcp", "net/tcp6")
_LISTENS: Final = "0A"


def listening_inodes(table: str, port: int) -> set[str]:
    """The sockets that listen on a port, by a table as ``/proc/net/tcp`` is one. Pure."""
    found = set()
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
            found.add(words[9])
    return found


def program_on(port: int) -> str:
    """``python3, process 4711``; empty where nobody listens or nobody knows who it is."""
    wanted: set[str] = set()
    for name in _TABLES:
        try:
            wanted |= listening_inodes((_PROC / name).read_text(), port)
        except OSError:
            continue
    links = {f"socket:[{inode}]" for inode in wanted}
    return next(_holders(links), "") if links else ""


def _holders(links: set[str]) -> Iterator[str]:
    for process in _PROC.iterdir():
        if not process.name.isdigit():
            continue
        try:
            if any(os.readlink(each) in links for each in (process / "fd").iterdir()):
                yield f"{(process / 'comm').read_text().strip()}, process {process.name}"
        except OSError:  # It has ended, or is another user's.
            continue
