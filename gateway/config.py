"""Settings of the gateway process."""

from __future__ import annotations

from dataclasses import dataclass

from service.addresses import is_loopback
from service.settings import setting, tuning
from service.shared_settings import GatewaySide, ProcessSettings, ServerSettings, words
from service.tls_settings import TlsSettings


@dataclass(frozen=True)
class RequestSettings:
    """Requests."""

    allowed_origins: str = setting("", "web origins whose pages may call this gateway, separated by commas")
    max_waiting: int = setting(64, "requests that may wait while all agents are busy", minimum=0)
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
class GatewayConfig(ProcessSettings, TlsSettings, RequestSettings, ServerSettings, GatewaySide):
    """Serve an OpenAI-compatible API and hand its requests to the device agents that connect here."""

    def __post_init__(self) -> None:
        """Raises ValueError where settings contradict each other or are unsafe together."""
        self.check_tls()
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
        if "*" in self.origins:
            raise ValueError(
                "allowed origins are named one by one: '*' would let every web page that somebody here opens use this "
                "gateway; set --allowed-origins (TRILBY_ALLOWED_ORIGINS) to the pages meant, like https://app.example"
            )

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
