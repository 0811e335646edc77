"""Profiles on this machine's disk: what was measured once is measured again only where something has changed.

A file is believed where it says itself what was measured, of which model and where, and all of it can be so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog
import torch

from device_agent.planning.profile import MAX_BYTES, DeviceProfile, Profile, written
from device_agent.planning.table import Table
from device_agent.profiling.beside import measured_cost
from device_agent.profiling.compute import Told, measured_seconds
from device_agent.profiling.decoding import measured_decoding
from device_agent.profiling.disk import measured_read
from device_agent.profiling.machine import MeasuredOn
from split_model.cache_folder import cache_folder
from split_model.checkpoint import Checkpoint
from split_model.free_memory import free_bytes
from split_model.hub import identity
from split_model.offload.file_pieces import codable
from split_model.offload.form import Decoding
from split_model.offload.store import UNITS

VERSION: Final = 6
"""Of how is measured: what was measured otherwise is measured again."""

log = structlog.get_logger()


class MeasuredOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured: of which model, with weights streamed from which folder, in which dtype, where, and how."""

    version: int
    digest: str
    folder: str
    dtype: str
    quick: bool
    where: MeasuredOn

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return folder() / f"device-{hashed(msgspec.json.encode(self))}.json"


class KeptProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept; see `DeviceProfile`."""

    of: MeasuredOf
    seconds: dict[str, Table]
    byte_cost_s: float
    read_bytes_s: float
    decoding: Decoding | None


def kept_or_measured(
    checkpoint: Checkpoint,
    dtype: torch.dtype | str,
    name: str,
    memory_bytes: int = 0,
    *,
    quick: bool = False,
    again: bool = False,
    progress: Told | None = None,
    device: torch.device | str = "cpu",
) -> DeviceProfile:
    """This device's profile for a model: from the disk where it was measured before, else measured now and kept.

    Blocks, and computes on this thread: it should be the one that computes later, or one that ends. Some seconds for a
    small model; weights of one layer are read.

    Args:
        name: of the device in plans.
        memory_bytes: how much a plan may use; 0: what is free now.
        quick: a few sizes are enough; what was measured at more is as good.
        again: measure, whatever is kept.
        progress: called with how many sizes are measured, of how many.
        device: where layers are computed. Where that is not the CPU nothing is planned to be read from the disk.

    Raises:
        BadCheckpoint: the layer cannot be read.
    """
    dtype_name = str(dtype).removeprefix("torch.")
    on_cpu, memory_bytes = torch.device(device).type == "cpu", memory_bytes or free_bytes(device)

    def of(quick: bool) -> MeasuredOf:
        folder, here = str(cache_folder(UNITS)), MeasuredOn.here(device)
        return MeasuredOf(VERSION, identity(checkpoint), folder, dtype_name, quick, here)

    def profile(found: KeptProfile) -> DeviceProfile:
        disk_bytes = shutil.disk_usage(checkpoint.path).free
        parts = found.seconds, found.byte_cost_s, found.read_bytes_s, found.decoding
        return DeviceProfile(name, memory_bytes, disk_bytes, *parts)

    for each in () if again else dict.fromkeys([of(False), of(quick)]):
        with suppress(ValueError, OSError):
            return profile(_read(each))
    seconds = measured_seconds(checkpoint, getattr(torch, dtype_name), quick, progress, device=device)
    decoding = measured_decoding(checkpoint, dtype_name) if on_cpu and codable(checkpoint.spec, dtype_name) else None
    cost_s, read_bytes_s = (measured_cost(), _measured_read()) if on_cpu else (0.0, 0.0)
    found = KeptProfile(of(quick), seconds, cost_s, read_bytes_s, decoding)
    if _lacks_disk(found):
        return profile(found)
    try:
        write_whole(found.of.path, msgspec.json.encode(found))
    except OSError as error:
        log.warning("what was measured cannot be kept", why=str(error))
    return profile(found)


def keep(profile: Profile) -> Path:
    """Keeps the profile of a group, in place of an earlier one of the same devices and model. Raises OSError."""
    names = [device.name for device in profile.devices]
    of = msgspec.json.encode((profile.digest, profile.dtype, names))
    path = folder() / f"group-{hashed(of)}.json"
    write_whole(path, written(profile).encode())
    return path


def folder() -> Path:
    """Where profiles are kept."""
    return cache_folder("profiles")


def _measured_read() -> float:
    """0 where the disk does not let itself be read: plans without reading can be made of the rest."""
    try:
        return measured_read(cache_folder(UNITS))
    except OSError as error:
        log.warning("how fast the disk is cannot be measured", why=str(error))
        return 0.0


def _read(of: MeasuredOf) -> KeptProfile:
    """Raises ValueError for a file that does not say what it should, OSError where there is none."""
    with open(of.path, "rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError(f"{of.path} is too long")
    found = msgspec.json.decode(text, type=KeptProfile)
    if found.of != of:
        raise ValueError(f"{of.path} is of something else")
    parts = found.seconds, found.byte_cost_s, found.read_bytes_s, found.decoding
    DeviceProfile("device", 0, 0, *parts)  # Refuses what cannot be.
    if _lacks_disk(found):
        raise ValueError(f"{of.path} lacks the disk")
    return found


def _lacks_disk(found: KeptProfile) -> bool:
    """Whether the disk could not be measured, as where it was full: it may be next time, and what is kept is kept for
    good."""
    return not found.of.where.device and not found.read_bytes_s


def write_whole(path: Path, text: bytes) -> None:
    """All of it or nothing. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with open(descriptor, "wb") as file:
            file.write(text)
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def hashed(text: bytes) -> str:
    """Short, for names of files."""
    return hashlib.sha256(text).hexdigest()[:24]
