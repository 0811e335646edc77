"""This machine: Python and its packages, memory, disk, clock. No torch, which may be what is broken."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Final

from service.doctor.clock import own_clock
from service.doctor.finding import Finding, Say
from service.doctor.versions import compared, needed, pinned
from split_model.cache_folder import cache_folder
from split_model.host_memory import free_host_bytes

LEAST_PYTHON: Final = (3, 10)
LOCKS: Final = ("requirements.lock", "requirements-torch.lock")
ROOT: Final = Path(__file__).resolve().parents[2]
"""Of a checkout, where the locks lie; an installed wheel has none."""

LITTLE_MEMORY_BYTES: Final = 2**30
"""PyTorch alone takes some hundred megabytes in each process."""

LITTLE_DISK_BYTES, NO_DISK_BYTES = 2 * 10**9, 100 * 10**6
"""From where on a model, or units that are repacked, may not fit; and profiles and logs."""


def python(say: Say) -> None:
    """The interpreter, and which packages it finds."""
    here = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count() or 1} cores"
    if sys.version_info < LEAST_PYTHON:
        say(Finding("python", "fail", here, "Install Python 3.10 or newer: make serve PYTHON=python3.11 uses it."))
    elif sys.maxsize < 2**32:
        say(Finding("python", "fail", f"{here}, of 32 bits", "Install a Python of 64 bits: PyTorch has no other."))
    else:
        say(Finding("python", "ok", here))
    try:
        least = needed(metadata.requires("trilby") or ())
    except metadata.PackageNotFoundError:
        todo = "Install it (make serve does; else pip install --no-deps --editable .), so that its needs are known."
        say(Finding("packages", "warn", "trilby runs from its folder and is not installed", todo))
        least = {}
    locked = pinned((ROOT / name).read_text("utf-8") for name in LOCKS if (ROOT / name).is_file())
    installed = {name: _installed(name) for name in {**least, **locked}}
    for finding in compared(installed, least, locked):
        say(finding)


def memory(say: Say) -> None:
    """What of the memory is free, within the limits of this container or service."""
    free, total = free_host_bytes(), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    seen, figures = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB are free", {"free_bytes": free, "all_bytes": total}
    if free < LITTLE_MEMORY_BYTES:
        todo = "Close other programs, or raise the limit of this container or service."
        say(Finding("memory", "warn", seen, todo, figures=figures))
    else:
        say(Finding("memory", "ok", seen, figures=figures))


def disk(say: Say) -> None:
    """Room where models, profiles and repacked weights are kept."""
    for folder in dict.fromkeys((cache_folder(""), _hub_folder())):
        # A folder that may not even be looked into is not there for this user; Path.exists would raise.
        there = next(each for each in (folder, *folder.parents) if os.path.exists(each))
        if not os.access(there, os.W_OK):
            todo = f"Let this user write there, or name another folder: {_VARIABLES}."
            say(Finding("disk", "warn", f"{folder} cannot be written", todo))
            continue
        free = shutil.disk_usage(there).free
        seen, figures = f"{free / 1e9:.1f} GB are free for {folder}", {"free_bytes": free}
        if free < LITTLE_DISK_BYTES:
            todo = f"Make room there, or name another folder: {_VARIABLES}."
            say(Finding("disk", "fail" if free < NO_DISK_BYTES else "warn", seen, todo, figures=figures))
        else:
            say(Finding("disk", "ok", seen, figures=figures))


_VARIABLES: Final = "XDG_CACHE_HOME for Trilby's own files, HF_HOME for models of the hub"


def clock(say: Say) -> None:
    """Whether the clock can be right at all."""
    say(own_clock(time.time(), Path(__file__).stat().st_mtime))


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _hub_folder() -> Path:
    """Where huggingface_hub keeps what it has fetched."""
    home = os.environ.get("HF_HOME", "")
    return Path(home).expanduser() if home else cache_folder("").parent / "huggingface"
