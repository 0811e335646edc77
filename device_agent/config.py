"""Settings of the device agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peers.secret import BY_CERTIFICATE, check_secret
from service.addresses import ANY, host_and_port
from service.alive_file import AliveSettings
from service.link_settings import JoinSettings, MemberSettings, ServersSettings
from service.modes import MODES
from service.settings import changed, setting, tuning
from service.shared_settings import (
    CloudTokenSettings,
    DeviceSide,
    DeviceTokenSettings,
    ModelSettings,
    ProcessSettings,
    SplitSettings,
)
from service.tls_settings import TlsSettings
from service.trace_settings import TraceSettings


@dataclass(frozen=True)
class ConnectionSettings(ServersSettings):
    """Whom it works with."""

    name: str = setting(
        "", "name of this device, shown to operators; empty: device- and a random number", variable="device_name"
    )
    reply_within_s: float = tuning(
        60.0, "seconds to wait for the cloud's answer to one chunk, and for room in it", minimum=0.1
    )
    recover_within_s: float = tuning(30.0, "seconds in which an answer must go on after its cloud is lost", minimum=0)


@dataclass(frozen=True)
class AnswerSettings:
    """Answers."""

    max_num_seqs: int = setting(32, "answers generated at once, all requests together", minimum=1)
    default_max_tokens: int = tuning(
        4096, "tokens of an answer whose request does not say how many it may have", minimum=1
    )
    conversations: int = tuning(8, "finished conversations kept ready for a next turn; 0: none", minimum=0)
    conversation_mb: int = tuning(256, "memory on this device for all of them, in MB", minimum=0)
    conversation_s: float = tuning(600.0, "seconds for which one is kept", minimum=0)


@dataclass(frozen=True)
class GroupSettings(MemberSettings):
    """Its group."""

    group: str = setting("home", "name of the group")
    group_listen: str = setting("127.0.0.1:8003", "where the other devices of its group join, as ADDRESS:PORT")
    announce: bool = tuning(False, "tell the local network where that is, by mDNS; needs the extra lan")
    join: str = changed(JoinSettings, "join", "")


@dataclass(frozen=True)
class DeviceConfig(
    ProcessSettings,
    AliveSettings,
    TraceSettings,
    TlsSettings,
    AnswerSettings,
    CloudTokenSettings,
    DeviceTokenSettings,
    GroupSettings,
    ConnectionSettings,
    DeviceSide,
):
    """Run a device agent: tokenizer, first layers and head stay here, the middle layers run in the cloud or in a group.

    With --join it serves nobody itself: it computes its part for the group of another device.
    """

    max_model_len: int = changed(ModelSettings, "max_model_len", 0, tunes=True)
    tail: int = changed(SplitSettings, "tail", 0, tunes=True)
    log_level: Literal["debug", "info", "warning", "error"] = changed(ProcessSettings, "log_level", "info", tunes=True)

    def __post_init__(self) -> None:
        """Raises ValueError where settings contradict each other."""
        super().__post_init__()
        self.check_tls()
        self.check_traces()
        if not self.gateways:
            raise ValueError("--gateway names at least one gateway")
        if self.join or MODES[self.mode].group:
            self.check_equals(self.group_key, "a group's key (TRILBY_GROUP_KEY)")
            try:
                check_secret(self.group_key or BY_CERTIFICATE)
            except ValueError as error:
                raise ValueError(f"--group-key (TRILBY_GROUP_KEY): {error}") from None
            if host_and_port("--group-listen", self.group_listen)[0] in ANY:
                raise ValueError("--group-listen names an address of this machine that the other devices reach")
