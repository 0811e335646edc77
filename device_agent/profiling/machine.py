"""What tells one device from another, as far as it decides how fast something is computed."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Union

import msgspec
import torch
from torch import device as as_device
from torch.cuda import get_device_name

from split_model.control_groups import own_groups

Device = Union[as_device, str]

_CPUS = Path("/proc/cpuinfo")


class MeasuredOn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A device and how it is used.

    Attributes:
        cpu: its name, as far as the system says.
        cores: on which this process may run.
        share: of a core's time that its control group may use at most, in cores; 0: no limit is known.
        threads: of the products.
        torch: PyTorch's version, since its kernels change.
        device: what computes, where that is not the CPU.
    """

    cpu: str
    cores: int
    share: float
    threads: int
    torch: str
    device: str = ""

    @classmethod
    def here(cls, device: Device = "cpu") -> MeasuredOn:
        """This device, now."""
        on = as_device(device)
        name = get_device_name(on) if on.type == "cuda" else "" if on.type == "cpu" else on.type
        return cls(_cpu_name(), _cores(), _share(), torch.get_num_threads(), str(torch.__version__), name)


def _cpu_name() -> str:
    for line in _CPUS.read_text().splitlines() if _CPUS.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _share() -> float:
    """The least that any of its control groups allows."""
    found = [quota / period for group in own_groups("cpu") for quota, period in _quotas(group) if quota > 0 < period]
    return min(found, default=0.0)


def _quotas(group: Path) -> list[tuple[int, int]]:
    """Microseconds of each period that a group may compute, and the period; by version 2 and by version 1."""
    version_1 = " ".join(_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    both = [_text(group / "cpu.max").split(), version_1.split()]
    return [(int(words[0]), int(words[1])) for words in both if len(words) == 2 and all(map(str.isdigit, words))]


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
