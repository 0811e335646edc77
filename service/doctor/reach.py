"""Whether an address can be dialled at all: its name, its port, and TLS, each with what to do where it cannot."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from typing import Any, Final

from service.doctor.finding import Finding, Status, sentence
from service.doctor.place import Place
from tls.why import why

WITHIN_S: Final = 5.0
"""Time for each: to look up the name, to connect to an address, to shake hands."""

MOST_ADDRESSES: Final = 3
"""Of a name, one after the other."""

SOON_DAYS: Final = 14.0
"""A certificate that ends so soon had better be renewed."""

_DAY_S: Final = 86400.0


async def reached(place: Place, context: ssl.SSLContext | None) -> Finding:
    """Dial, and hang up.

    context: what the other side's certificate is checked by; None: it is dialled without TLS.
    """
    try:
        known = asyncio.get_running_loop().getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        addresses = await asyncio.wait_for(known, WITHIN_S)
    except (socket.gaierror, UnicodeError):
        todo = "Check its spelling, this machine's name servers and /etc/hosts, or dial the address itself."
        return _fail(place, f"the name {place.host} is not known on this machine", todo)
    except (TimeoutError, asyncio.TimeoutError):
        todo = "Check this machine's name servers (/etc/resolv.conf), or dial the address itself."
        return _fail(place, f"nobody says within {WITHIN_S:g} s what address {place.host} has", todo)
    failed: Exception = OSError()
    for family, kind, protocol, _, address in addresses[:MOST_ADDRESSES]:
        began = time.perf_counter()
        try:
            plain = await _connected(socket.socket(family, kind, protocol), address)
        except (OSError, asyncio.TimeoutError) as error:
            # Of several reasons the one that says most: a name may have addresses of a family that is not here.
            failed = failed if isinstance(failed, ConnectionRefusedError) else error
            continue
        took_s = time.perf_counter() - began
        seen, figures = f"{address[0]} takes connections, within {took_s * 1e3:.1f} ms", {"connect_s": took_s}
        if context is not None:
            return await _shaken(place, plain, context, seen, figures)
        plain.close()
        return Finding("dialled", "ok", seen, about=place.websocket, figures=figures)
    return _unreached(place, failed)


def _unreached(place: Place, error: Exception) -> Finding:
    if isinstance(error, ConnectionRefusedError):
        todo = "Start it there, or look at its --host and --port: on 127.0.0.1 it is reached from its own machine only."
        return _fail(place, f"its machine answers, and nobody listens on port {place.port}", todo)
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        todo = f"Check the address, and that firewalls on the way let port {place.port} through."
        return _fail(place, f"no answer within {WITHIN_S:g} s", todo)
    reason = getattr(error, "strerror", None) or type(error).__name__
    return _fail(place, f"it cannot be dialled: {reason}", "Check this machine's network, and the address.")


async def _connected(plain: socket.socket, address: Any) -> socket.socket:
    """The socket, once it is connected; closed where that fails. Raises ``OSError`` or ``asyncio.TimeoutError``."""
    try:
        plain.setblocking(False)
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(plain, address), WITHIN_S)
    except BaseException:
        plain.close()
        raise
    return plain


async def _shaken(
    place: Place, plain: socket.socket, context: ssl.SSLContext, seen: str, figures: dict[str, float]
) -> Finding:
    """The same with TLS, on the connection that is there: servers log each that breaks off. It is closed."""
    try:
        certificate, version = await _secured(plain, context, place.host)
    except (OSError, asyncio.TimeoutError) as error:  # TLS's own are OSErrors.
        broken: BaseException = error if isinstance(error, OSError) else TimeoutError()
        reason, _, todo = why(broken, dialled=True).partition(": ")
        return _fail(place, f"no TLS: {reason}", sentence(todo) or "Its log says what it has against this side.")
    days = days_left(certificate, time.time())
    seen += f", and speaks {version}"
    status: Status = "ok"
    todo = ""
    if days is not None:
        figures = {**figures, "certificate_days": round(days, 1)}
        seen += f"; its certificate lasts for {days:.0f} more days"
        if days < SOON_DAYS:
            status, todo = "warn", "Renew it: new files over the old ones are read while it runs."
    return Finding("dialled", status, seen, todo, place.websocket, figures)


async def _secured(plain: socket.socket, context: ssl.SSLContext, host: str) -> tuple[dict[str, Any], str]:
    """The certificate that is shown, and TLS's version. Raises ``OSError`` or ``asyncio.TimeoutError``."""
    shaken = asyncio.get_running_loop().create_connection(
        asyncio.Protocol, sock=plain, ssl=context, server_hostname=host
    )
    transport, _ = await asyncio.wait_for(shaken, WITHIN_S)
    found = transport.get_extra_info("peercert") or {}, transport.get_extra_info("ssl_object").version()
    transport.abort()
    return found


def days_left(certificate: dict[str, Any], now: float) -> float | None:
    """Until the end of a certificate, as ``getpeercert`` has it, at ``now`` (seconds since 1970); None where it does
    not say. Pure."""
    end = certificate.get("notAfter")
    return (ssl.cert_time_to_seconds(end) - now) / _DAY_S if isinstance(end, str) else None


def _fail(place: Place, seen: str, todo: str) -> Finding:
    return Finding("dialled", "fail", seen, todo, place.websocket)
