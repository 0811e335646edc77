"""Why TLS did not come about, and what to do: for people, from what the library raises. Pure."""

from __future__ import annotations

import ssl
from typing import Final

_CLOCK: Final = "renew it, or set the clock of the machine that says so"

_VERIFIED: Final = {
    9: "the certificate shown is not valid yet: are the clocks of both machines right?",
    10: f"the certificate shown has expired: {_CLOCK}",
    26: "the certificate shown is for another purpose: who is dialled needs one for servers, who dials one for clients",
    62: "the certificate shown is for another name: dial a name that is in it, or make one with the dialled name",
    64: "the certificate shown is for another address: dial a name that is in it, or make one with this address",
}
"""What is wrong with the other side's certificate, by OpenSSL's number."""

_UNSIGNED: Final = "nobody trusted here has signed the certificate shown: name the file of its CA with --tls-ca"

_ALERTS: Final = {
    "UNKNOWN_CA": "the other side does not trust this side's certificate: its --tls-ca must be the CA that signed it",
    "CERTIFICATE_EXPIRED": f"the other side says that this side's certificate has expired: {_CLOCK}",
    "CERTIFICATE_REQUIRED": "the other side wants a certificate: give this side --tls-cert and --tls-key",
    "UNSUPPORTED_CERTIFICATE": "the other side says that this side's certificate is for another purpose: who is "
    "dialled needs one for servers, who dials one for clients",
    "BAD_CERTIFICATE": "the other side refuses this side's certificate: it is not valid yet, for another name than was "
    "dialled, or broken",
    "CERTIFICATE_UNKNOWN": "the other side refuses this side's certificate",
    "PROTOCOL_VERSION": "the other side speaks no TLS of version 1.2 or later",
}
"""What the other side says of this one's, by the end of the alert's name."""

_BROKEN_OFF: Final = (
    "the other side broke off the handshake, or never finished it: it may not trust the certificate of this side (its "
    "CA, name or dates), which its own log says"
)

_NO_TLS: Final = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}


def why(error: BaseException, *, dialled: bool) -> str:
    """What is wrong, and what to do.

    Args:
        error: what the handshake, or the first reading behind it, has raised.
        dialled: whether this side has dialled.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFIED.get(error.verify_code, f"{_UNSIGNED} ({error.verify_message})")
    reason = (getattr(error, "reason", None) or "") if isinstance(error, ssl.SSLError) else ""
    for alert, meaning in _ALERTS.items():
        if reason.endswith(alert):
            return meaning
    if reason in _NO_TLS:
        if dialled:
            return "what listens there does not speak TLS: dial ws:// or http://, or give it --tls-cert"
        return "who dials does not speak TLS: have it dial wss:// or https://"
    if isinstance(error, ssl.SSLEOFError | ConnectionError | TimeoutError):
        return _BROKEN_OFF
    return f"the handshake failed ({reason or type(error).__name__})"


def cause(error: BaseException | None) -> ssl.SSLError | None:
    """The TLS error among ``error`` and what it was raised from; None where there is none."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if isinstance(error, ssl.SSLError):
            return error
        seen.append(error)
        error = error.__cause__ or error.__context__
    return None
