"""Settings of the gateway process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from gateway.key_stores import IN_REDIS
from gateway.limits.limits import Limits
from service.addresses import ANY, host_port, is_loopback, unbracketed
from service.settings import setting, tuning
from service.shared_settings import GatewaySide, ProcessSettings, ServerSettings, words
from service.tls_settings import TlsSettings
from service.trace_settings import TraceSettings

REDIS_SCHEMES: Final = ("redis://", "rediss://", "unix://")

HOST_NAME: Final = re.compile(r"[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*")

LEAST_TOKEN: Final = 16
"""Characters of a gateway token: whoever reads redis may try to guess it."""


@dataclass(frozen=True)
class RequestSettings:
    """Requests."""

    allowed_origins: str = setting("", "web origins whose pages may call this gateway, separated by commas")
    max_waiting: int = tuning(64, "requests that may wait while all agents are busy", minimum=0)
    wait_within_s: float = setting(30.0, "seconds a request waits for a free agent", minimum=0)
    request_within_s: float = setting(600.0, "seconds an answer may take once an agent has accepted", minimum=0.01)
    max_body_bytes: int = tuning(4 * 2**20, "largest request body in bytes", minimum=1, maximum=4 * 2**20)
    max_reading_bytes: int = tuning(2**28, "bytes of request bodies being read at once, all together", minimum=1)
    body_within_s: float = tuning(30.0, "seconds in which a request body must have arrived", minimum=0.01)
    max_total_tokens: int = tuning(2**22, "most tokens of one request, prompts and answers of all choices", minimum=1)
    max_client_requests: int = tuning(256, "requests that one client may have open, waiting or running", minimum=1)
    accept_within_s: float = tuning(30.0, "seconds an agent has to accept a request", minimum=0.01)
    keep_alive_s: float = tuning(10.0, "seconds of silence in a stream before a keep-alive comment", minimum=0.01)
    client_within_s: float = tuning(20.0, "seconds a client may take to read what was sent to it", minimum=0.01)
    max_agents: int = tuning(256, "device agents connected at once", minimum=1)


@dataclass(frozen=True)
class KeySettings:
    """API keys and their limits."""

    key_store: str = setting("", "where the keys of trilby keys are: a file; or redis, with --redis")
    requests_a_minute: int = tuning(
        0, "requests a minute of each API key that says nothing else, or address where none is asked; 0: any", minimum=0
    )
    tokens_a_minute: int = tuning(0, "tokens a minute, prompts and answers; 0: any", minimum=0)
    concurrent_requests: int = tuning(0, "requests open at once; 0: any", minimum=0)

    @property
    def limits(self) -> Limits:
        """What a key may do that says nothing else."""
        return Limits(self.requests_a_minute, self.tokens_a_minute, self.concurrent_requests)


@dataclass(frozen=True)
class FleetSettings:
    """Several gateways."""

    redis: str = setting("", "redis that all gateways share: redis://HOST:PORT, rediss://… or unix://PATH", secret=True)
    gateway_token: str = setting(
        "", "secret that the gateways share, 16 characters or more; needed with --redis", secret=True
    )
    advertise: str = tuning("", "where the other gateways reach this one: http://HOST:PORT; empty: --host and --port")
    peer_name: str = tuning(
        "",
        "name in the certificates of all gateways, by which they are checked where --advertise is an address; empty: "
        "what is dialled",
    )


@dataclass(frozen=True)
class GatewayConfig(
    ProcessSettings,
    TraceSettings,
    TlsSettings,
    RequestSettings,
    KeySettings,
    FleetSettings,
    ServerSettings,
    GatewaySide,
):
    """Serve an OpenAI-compatible API and hand its requests to the device agents that connect here."""

    def __post_init__(self) -> None:
        """Raises ValueError where settings contradict each other or are unsafe together."""
        self.check_tls()
        self.check_traces()
        if not self.on_loopback and not self.device_token and not self.takes_certificates:
            raise ValueError(
                f"listening on {self.host} needs a device token, or anyone could answer your clients: "
                "set TRILBY_DEVICE_TOKEN or --device-token-file here and on the device agents; or --tls-cert and "
                "--tls-ca, and give the agents certificates"
            )
        if not self.device_token.isprintable() or len(self.device_token) > 512:
            raise ValueError("the device token is up to 512 printable characters")
        if self.operator_token and self.operator_token in (self.device_token, *self.keys):
            raise ValueError(
                "the operator token is an API key or the device token too: whoever has that could drain this gateway; "
                "choose another --operator-token (TRILBY_OPERATOR_TOKEN)"
            )
        self._check_fleet()
        if "*" in self.origins:
            raise ValueError(
                "allowed origins are named one by one: '*' would let every web page that somebody here opens use this "
                "gateway; set --allowed-origins (TRILBY_ALLOWED_ORIGINS) to the pages meant, like https://app.example"
            )

    def _check_fleet(self) -> None:
        if self.key_store == IN_REDIS and not self.redis:
            raise ValueError("--key-store redis needs --redis (TRILBY_REDIS)")
        if not self.redis:
            return
        if not self.redis.startswith(REDIS_SCHEMES) or not _has_good_port(self.redis) or urlsplit(self.redis).query:
            raise ValueError("--redis is redis://HOST:PORT, rediss://HOST:PORT or unix://PATH, and nothing behind it")
        if (
            len(self.gateway_token) < LEAST_TOKEN
            or not self.gateway_token.isascii()
            or not self.gateway_token.isprintable()
        ):
            raise ValueError(
                f"--redis needs a --gateway-token (TRILBY_GATEWAY_TOKEN) of {LEAST_TOKEN} printable ASCII characters "
                "or more, the same at all gateways: with it they know what others of them send and have written"
            )
        if self.gateway_token in (self.device_token, self.operator_token, *self.keys):
            raise ValueError("the gateway token is another secret's too: whoever has that could pass for a gateway")
        if self.advertise and not (
            self.advertise.startswith(("http://", "https://")) and _has_good_port(unbracketed(self.advertise))
        ):
            raise ValueError("--advertise is http://HOST:PORT or https://HOST:PORT")
        if self.peer_name and not HOST_NAME.fullmatch(self.peer_name):
            raise ValueError("--peer-name is a host name, as it stands in the certificates of all gateways")
        if not self.advertise and (self.host in ANY or not self.port):
            raise ValueError("--redis needs --advertise http://HOST:PORT, where the other gateways reach this one")

    @property
    def own_url(self) -> str:
        """Where the other gateways reach this one."""
        scheme = "https" if self.tls_cert else "http"
        return unbracketed(self.advertise or f"{scheme}://{host_port(self.host, self.port)}").rstrip("/")

    @property
    def takes_certificates(self) -> bool:
        """Whether agents may show a certificate instead of the token."""
        return bool(self.tls_cert and self.tls_ca)

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)

    @property
    def origins(self) -> tuple[str, ...]:
        """The web origins whose pages may call, one by one."""
        return words(self.allowed_origins)


def _has_good_port(url: str) -> bool:
    try:
        urlsplit(url).port  # noqa: B018
    except ValueError:
        return False
    return True
