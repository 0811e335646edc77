"""Settings of `trilby profile`, and of the processes that it starts."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Literal

from service.link_settings import MemberSettings
from service.settings import changed, setting
from service.shared_settings import DevicesSettings, MemorySettings, ModelSettings


@dataclass(frozen=True)
class MeasureSettings:
    """What is measured."""

    model: str = changed(ModelSettings, "model", MISSING)
    dtype: Literal["float32", "bfloat16"] = changed(ModelSettings, "dtype", "float32")
    threads: int = changed(ModelSettings, "threads", 0)
    memory: str = changed(MemorySettings, "memory", "")
    quick: bool = setting(False, "fewer sizes, in some seconds", variable="profile_quick")
    again: bool = setting(False, "measure, though it was measured before", variable="profile_again")


@dataclass(frozen=True)
class ProfileConfig(MeasureSettings):
    """Measure what this device takes for the parts of a model, for trilby plan and for groups of devices.

    With --devices, as many processes on this machine are measured together, each with its part of the cores, and the
    links between them.
    """

    devices: int = changed(DevicesSettings, "devices", 1)
    out: str = setting("", "file for the profile; empty: only where profiles are kept", variable="profile_out")


@dataclass(frozen=True)
class MeasuredMemberConfig(MeasureSettings):
    """One of several devices that are measured together; trilby profile starts it."""

    name: str = setting("", "what the device is called in plans")
    join: str = setting("", "where the others are waited for, as HOST:PORT")
    group_key: str = changed(MemberSettings, "group_key", "")
