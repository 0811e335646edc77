"""A websocket that this side has dialled, and why where there is none."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_and_follow
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

from tls.why import cause, why
from wire.errors import Code, ConnectionFailed
from wire.limits import HELLO_WITHIN_S, MESSAGE_BYTES

CLOSE_WITHIN_S = 2.0
"""Time for the farewell and the closing handshake before the socket is simply dropped."""

CLOSE_SILENT_S = 0.2
"""The same for a peer that has been silent for too long, or has not read: it answers no goodbye either, and who gave it
up dials again only behind this."""


_HUNG_UP: Final = (
    "; it may want a certificate of this side (--tls-cert), or have something against it: another CA, expired, not "
    "valid yet, for another purpose; its log says what"
)


class connect(connect_and_follow):
    """Without redirects: a secret and hidden states go to the address that they were given for, and nowhere else."""

    def process_redirect(self, exc: Exception) -> Exception:
        """What says to go elsewhere is a refusal."""
        return exc


async def dialled(url: str, context: ssl.SSLContext | None) -> ClientConnection:
    """Connect to a peer.

    context: of ``wss://``; None: the system's CAs are trusted.

    Raises:
        ConnectionFailed: ``lost`` with what went wrong and what to look at, when nobody answers at ``url``.
    """
    safely: dict[str, Any] = {"ssl": context or True} if url.startswith("wss:") else {}
    try:
        return await connect(
            url,
            max_size=MESSAGE_BYTES,
            max_queue=4,
            compression=None,
            open_timeout=HELLO_WITHIN_S,
            ping_interval=None,  # The protocol has heartbeats of its own.
            close_timeout=CLOSE_WITHIN_S,
            proxy=None,
            **safely,
        )
    except (OSError, TimeoutError, asyncio.TimeoutError, UnicodeError, InvalidHandshake, InvalidURI) as error:
        raise ConnectionFailed(Code.LOST, _why_nobody(url, error)) from error


def _why_nobody(url: str, error: BaseException) -> str:
    broken = cause(error)
    if broken is not None:
        return f"no TLS with {url}: {why(broken, dialled=True)}"
    hint = ""
    if isinstance(error, InvalidStatus) and 300 <= error.response.status_code < 400:
        hint = "; it says to go elsewhere, which is not followed: name the address where that is"
    if isinstance(error, InvalidHandshake | ConnectionError) and not isinstance(error, InvalidStatus):
        # Of what a server has against a certificate the dialler's library tells nothing: it just hangs up.
        hint = _HUNG_UP if url.startswith("wss:") else "; where it has a --tls-cert, dial wss://"
    return f"nobody answers at {url} ({type(error).__name__}){hint}"
