"""A disk of a host's own: a file behind a loop device, with a file system on it.

A cgroup's limit holds back whatever its programs read from a disk, the interpreter and its libraries too. On a device
of their own only the files that are put there are slow. Reads of the loop device go past the page cache of the file
behind it, which would keep what a program's own memory limit has no room for.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.testbed.possible import NotPossible

FOLDER = Path("/var/tmp/trilby-testbed")
"""A folder a bed, named by its prefix: ``N.img`` and, mounted, ``N`` of the host with number N."""

_TOOLS = {"mkfs.ext4": "e2fsprogs", "losetup": "mount", "mount": "mount", "umount": "mount", "findmnt": "util-linux"}
_CONTROL = Path("/dev/loop-control")
_FORMAT = ("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=0")
_WITHIN_S = 60.0


def disk_obstacle() -> str:
    """What stands in the way of such disks, and what to do about it; '' where nothing does."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        packages = " ".join(sorted({_TOOLS[tool] for tool in missing}))
        return f"{', '.join(missing)} not found; install the packages {packages}"
    return "" if _CONTROL.exists() else f"there is no {_CONTROL}; a container needs --privileged"


@dataclass(frozen=True)
class OwnDisk:
    """One disk.

    Attributes:
        path: where it is mounted.
        device: as ``major:minor``.
    """

    path: Path
    device: str


def make_disk(prefix: str, name: str, megabytes: int, folder: Path = FOLDER) -> OwnDisk:
    """A new disk of a bed, until ``remove_disks``.

    Args:
        name: of the disk within its bed.
        megabytes: 10^6 bytes, those of the file system included.

    Raises:
        NotPossible: there can be none here.
        OSError: its file cannot be made.
        CalledProcessError: it cannot be formatted or mounted.
    """
    if disk_obstacle():
        raise NotPossible(disk_obstacle())
    path, image = folder / prefix / name, folder / prefix / f"{name}.img"
    path.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(megabytes * 10**6)
    _run(*_FORMAT, str(image))
    device = _run("losetup", "--direct-io=on", "--find", "--show", str(image)).strip()
    try:
        _run("mount", "-t", "ext4", "-o", "noatime", device, str(path))
    finally:
        _run("losetup", "--detach", device)  # It goes with the last who uses it: the mount, or nobody.
    return OwnDisk(path, _run("findmnt", "-n", "-o", "MAJ:MIN", str(path)).strip())


def remove_disks(prefix: str, folder: Path = FOLDER) -> None:
    """Unmount and remove all disks of a bed, whose programs have ended."""
    for image in sorted((folder / prefix).glob("*.img")):
        path = image.with_suffix("")
        if path.is_mount():
            _run("umount", str(path))
        path.rmdir()
        image.unlink()
    if (folder / prefix).is_dir():
        (folder / prefix).rmdir()


def _run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=_WITHIN_S).stdout
