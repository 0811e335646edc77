"""HTTP and websockets behind TLS, and who has shown a certificate there."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.sparing_log import SparingLog
from tls.contexts import HANDSHAKE_WITHIN_S, Tls, name_in
from tls.why import why

UNSENT_BYTES: Final = 64 * 2**10
"""What a connection keeps beside what the kernel has: as much as one without TLS."""

BACKLOG: Final = 2048
"""Connections that the kernel keeps for whoever accepts them; as many as uvicorn has it keep."""

MAX_GREETING: Final = 256
"""Handshakes under way, each of which takes a round trip or two; beyond it the oldest of the address with most of them
is given up for the newest."""

IPV6_SITE: Final = 64
"""Bits of an IPv6 address that tell one site from another; whoever has one address of a site has all of them."""

NO_FILES_S: Final = 0.2
"""Where no more files can be opened, which may be for a moment: until it is tried again."""

_KEY: Final = "certificate"


class TlsHttp(H11Protocol):
    """uvicorn's, which says in the state of each request and websocket who the other side has shown to be."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The handshake has succeeded."""
        transport.set_write_buffer_limits(UNSENT_BYTES)
        self.app_state = {**self.app_state, _KEY: name_in(transport.get_extra_info("peercert"))}
        super().connection_made(transport)


class TlsAcceptor:
    """Takes connections in, each by a task of its own: who is slow, or never says anything, keeps nobody waiting.

    Args:
        tls: has a certificate.
        protocol: makes what serves a connection behind its handshake.
    """

    def __init__(self, tls: Tls, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._context = tls.listening()
        self._protocol = protocol
        self._often = SparingLog()
        self._greeting: dict[asyncio.Task[None], str] = {}
        """Whose they are. The one that has been at it for longest is the first."""

    async def accept(self, listener: socket.socket) -> None:
        """From a listener, until it is cancelled."""
        listener.setblocking(False)
        listener.listen(BACKLOG)
        while True:
            try:
                connection, where = await asyncio.get_running_loop().sock_accept(listener)
            except OSError:
                await asyncio.sleep(NO_FILES_S)
                continue
            task = asyncio.create_task(self._greet(connection, str(where[0])))
            self._greeting[task] = _site_of(str(where[0]))
            task.add_done_callback(lambda done: self._greeting.pop(done, None))
            if len(self._greeting) > MAX_GREETING:
                self._give_up_one()
            await asyncio.sleep(0)  # While there are some to accept, accepting does not let others run.

    def _give_up_one(self) -> None:
        counts = Counter(self._greeting.values())
        oldest = max(self._greeting, key=lambda each: counts[self._greeting[each]])  # Of several the first.
        del self._greeting[oldest]
        oldest.cancel()

    async def _greet(self, connection: socket.socket, address: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol, connection, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_WITHIN_S
            )
        except OSError as error:  # Those of TLS, and of who hangs up, or takes too long.
            reason = why(error, dialled=False)
            self._often.warning("no TLS with who dials", reason, address=address, why=reason)


def _site_of(address: str) -> str:
    """Whose an address is taken to be: an IPv4 address for itself, an IPv6 one for its whole site."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, IPV6_SITE), strict=False))


def certified(connection: HTTPConnection) -> str | None:
    """The name in the certificate that who is connected has shown, and that was verified; None where there was none."""
    return certified_in(connection.scope)


def certified_in(scope: Scope) -> str | None:
    """The same of a scope."""
    name = scope.get("state", {}).get(_KEY)
    return name if isinstance(name, str) else None
