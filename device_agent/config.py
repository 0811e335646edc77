"""Settings of the device agent."""

from __future__ import annotations

from dataclasses import dataclass

from service.settings import setting, tuning
from service.shared_settings import CloudTokenSettings, DeviceSide, DeviceTokenSettings, ProcessSettings


@dataclass(frozen=True)
class ConnectionSettings:
    """Whom it works with."""

    gateway: str = setting("ws://127.0.0.1:8000", "gateway to serve", variable="gateway_url")
    cloud: tuple[str, ...] = setting(
        ("ws://127.0.0.1:8001",),
        "cloud server with the middle layers; several times: the first is preferred",
        variable="cloud_url",
    )
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
class DeviceConfig(
    ProcessSettings, AnswerSettings, CloudTokenSettings, DeviceTokenSettings, ConnectionSettings, DeviceSide
):
    """Run a device agent: tokenizer, first layers and head stay here, the middle layers run in the cloud."""
