"""Settings of ``trilby doctor``: those of the processes that it looks for, where these have them too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from service.addresses import host_and_port
from service.api_server import ApiSettings
from service.doctor.place import Place, place_of
from service.link_settings import JoinSettings, MemberSettings, ServersSettings
from service.modes import MODES
from service.settings import changed, setting, settle, tuning
from service.shared_settings import (
    CloudTokenSettings,
    DeviceTokenSettings,
    MemorySettings,
    ModelSettings,
    SplitSettings,
    words,
)
from service.sizes import bytes_of
from service.tls_settings import TlsSettings

AUTO: Final = "auto"
"""What ``--join`` says where the group is to be found."""

USUAL_SPLIT: Final = 2


@dataclass(frozen=True)
class CheckedLinks:
    """What is dialled."""

    gateway: str = changed(ServersSettings, "gateway", "")
    cloud: tuple[str, ...] = changed(ServersSettings, "cloud", ())
    join: str = changed(JoinSettings, "join", "")
    bandwidth: bool = tuning(
        True,
        "send rows to each cloud and take the time, with --model: up to 3 MB each way, for up to 5 s",
        variable="doctor_bandwidth",
    )
    api_key: str = changed(ApiSettings, "api_key", "")

    @property
    def gateways(self) -> tuple[Place, ...]:
        """The gateways that were named. Raises ValueError where one is no URL."""
        return tuple(place_of("--gateway", each) for each in words(self.gateway))

    @property
    def clouds(self) -> tuple[Place, ...]:
        """The cloud servers that were named. Raises ValueError where one is no URL."""
        return tuple(place_of("--cloud", each) for each in self.cloud)


@dataclass(frozen=True)
class CheckedModel:
    """What is to run."""

    model: str = changed(ModelSettings, "model", "")
    served_model_name: tuple[str, ...] = changed(ModelSettings, "served_model_name", (), tunes=True)
    mode: str = changed(SplitSettings, "mode", "hat")
    split: int = changed(SplitSettings, "split", None)
    tail: int = changed(SplitSettings, "tail", 0, tunes=True)
    dtype: Literal["float32", "bfloat16"] = changed(ModelSettings, "dtype", "float32")
    device: str = changed(ModelSettings, "device", "auto")
    max_model_len: int = changed(ModelSettings, "max_model_len", 0, tunes=True)
    memory: str = changed(MemorySettings, "memory", "")


@dataclass(frozen=True)
class DoctorConfig(TlsSettings, MemberSettings, CloudTokenSettings, DeviceTokenSettings, CheckedModel, CheckedLinks):
    """Say what is wrong with this machine, its links and its model, and what to do about each.

    With nothing given: this machine, and what trilby serve has on it. Exit status 1 where something fails.
    """

    json: bool = setting(False, "print data for programs instead of text", variable="doctor_json")

    def __post_init__(self) -> None:
        """Raises ValueError where a setting makes no sense."""
        mode = MODES[self.mode]
        settle(self, CheckedModel, {"split": mode.device.get("split", 0 if mode.group else USUAL_SPLIT)})
        self.gateways, self.clouds  # noqa: B018 (they raise)
        if self.join and self.join != AUTO:
            host_and_port("--join", self.join)
        if not mode.group:
            bytes_of("--memory", self.memory)
