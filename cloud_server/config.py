"""Settings of the cloud server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peers.secret import LEAST_CHARACTERS
from service.addresses import ANY, host_and_port
from service.modes import cloud_of
from service.settings import setting, settle, tuning
from service.shared_settings import CloudSide, CloudTokenSettings, ProcessSettings, ServerSettings
from service.tls_settings import TlsSettings
from service.trace_settings import TraceSettings


@dataclass(frozen=True)
class ListeningSettings:
    """Where it listens."""

    host: str = setting("127.0.0.1", "address to listen on", variable="cloud_host")
    port: int = setting(8001, "port to listen on", minimum=0, maximum=65535, variable="cloud_port")
    drain_to: str = setting(
        "",
        "cloud that devices had better go to when this one drains, ws://HOST:PORT as their --cloud has it; they go to "
        "none that they were not told of",
        tunes=True,
    )


@dataclass(frozen=True)
class MachineSettings:
    """This machine."""

    stages: int = setting(1, "processes (on GPUs: devices) that share the layers as a pipeline", minimum=1)
    transport: Literal["links", "nccl"] = tuning(
        "links", "how hidden states go from stage to stage; nccl needs a GPU for each"
    )
    attention: Literal["auto", "sdpa", "varlen", "flash"] = tuning("auto", "attention kernels")
    kv_mb: int = setting(
        0, "memory for keys and values, in MB; 0: half of what is free at start", minimum=0, maximum=10**9
    )
    page_positions: int = tuning(32, "positions in one page of the KV cache", minimum=1)


@dataclass(frozen=True)
class RemoteStageSettings:
    """Stages on other machines."""

    remote_stages: int = setting(
        0, "how many of the stages are on other machines, each begun there with `trilby stage`", minimum=0, tunes=True
    )
    stage_address: str = setting(
        "",
        "where those join, HOST:PORT: an address of this machine that they reach; without --tls-cert in a network or "
        "VPN you trust",
        tunes=True,
    )
    stage_token: str = setting(
        "", "secret that the stages of a pipeline share, 16 characters or more", secret=True, tunes=True
    )


@dataclass(frozen=True)
class SessionSettings:
    """Sessions."""

    step_slack: float = setting(
        usual=1.25,
        help="how many times longer than without chunks of prompts a decoder's answer may take, where --mode does not "
        "say; 0: no limit",
        minimum=0,
    )
    max_sessions: int = tuning(256, "sessions open at once, all devices together", minimum=1)
    max_device_sessions: int = tuning(64, "sessions open at once on one connection of a device", minimum=1)
    parked_sessions: int = tuning(32, "finished sessions of one device kept for a next turn", minimum=0)
    idle_s: float = tuning(600.0, "seconds after which a session nobody uses is given up", minimum=1)
    resume_s: float = tuning(30.0, "seconds that sessions outlive their connection", minimum=0)
    window_rows: int = tuning(
        usual=2048, help="rows a session may send unanswered, where --mode does not say", minimum=1
    )
    max_rows: int = tuning(usual=512, help="rows in one chunk, where --mode does not say", minimum=1)


@dataclass(frozen=True)
class CloudConfig(
    ProcessSettings,
    TraceSettings,
    TlsSettings,
    SessionSettings,
    RemoteStageSettings,
    MachineSettings,
    ServerSettings,
    CloudTokenSettings,
    ListeningSettings,
    CloudSide,
):
    """Run the middle layers of a model for many devices. Sees hidden states only: no text, no token ids."""

    def __post_init__(self) -> None:
        """Raises ValueError for a mode without a cloud, a slack that would leave no step any time, a token that devices
        have too, and stages on other machines that could not join."""
        self.check_names()
        self.check_tls()
        self.check_traces()
        settle(self, CloudConfig, cloud_of(self.mode, whole_prompts=self.whole_prompts))
        if 0 < self.step_slack < 1:
            raise ValueError(f"--step-slack is a factor of 1 or more, or 0 for no limit, not {self.step_slack:g}")
        if self.operator_token and self.operator_token == self.cloud_token:
            raise ValueError(
                "the operator token is the cloud token too: every device could drain this cloud; choose another "
                "--operator-token (TRILBY_OPERATOR_TOKEN)"
            )
        if self.remote_stages:
            if not self.stage_address:
                raise ValueError("--remote-stages needs --stage-address HOST:PORT, where they join")
            if host_and_port("--stage-address", self.stage_address)[0] in ANY:
                raise ValueError("--stage-address names an address of this machine that the other stages reach")
            self.check_equals(self.stage_token, "--remote-stages: a --stage-token (TRILBY_STAGE_TOKEN)")
        if self.remote_stages and self.stage_token and len(self.stage_token) < LEAST_CHARACTERS:
            raise ValueError(
                f"--remote-stages needs a --stage-token (TRILBY_STAGE_TOKEN) of {LEAST_CHARACTERS} characters or more, "
                "the same for all stages"
            )
        if self.remote_stages and self.remote_stages >= self.stages:
            raise ValueError("--remote-stages are some of the --stages: the first is this process")

    @property
    def is_guarded(self) -> bool:
        """Whether devices have to show a token, or a certificate."""
        return bool(self.cloud_token or (self.tls_cert and self.tls_ca))
