"""Starting and stopping a server: drain first, then close.

uvicorn closes websockets within 100 ms of SIGTERM, so the signals are taken here, and mean what ``stopping.py`` says:
to drain is to refuse new work, tell the peers, and let open work finish, up to a limit.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn
from starlette.types import ASGIApp

from service.addresses import host_port
from service.stopping import AT_ONCE_S, LAST_BYTES_S, Urgency, stop_signals
from service.tls_server import TlsAcceptor, TlsHttp
from service.websockets import BoundedWebSocket
from tls.contexts import Tls

UNREAD_WITHIN_MS = 30_000
"""A peer that has not acknowledged anything for this long is dropped by the kernel: ASGI has no way to abort a socket
whose client never reads."""

UNSENT_BYTES = 64 * 2**10
"""What the kernel takes of a connection beyond what is on its way; ``wire.limits`` has it for dialled ones."""

EVERY = "::"
"""All addresses of a machine, of both families."""

KEEP_ALIVE_S = 75
"""How long a connection without a request stays: longer than proxies and clients keep one to use it again. Who sends a
request just as it is closed has an error, and other gateways would do without this one for a while."""

MAX_HEADER_BYTES = 32 * 2**10
"""Request line and headers of one HTTP request."""


FAILED_STATUS = 1
"""Exit status of a server that cannot go on, so that whoever watches it starts it again."""


class DrainingServer(uvicorn.Server):
    """A uvicorn server that drains before it stops, behind TLS where there is a certificate.

    Args:
        failure: why it cannot go on, if so. It is then stopped at once.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Callable[[], Awaitable[object]],
        tls: Tls | None = None,
        failure: Callable[[], BaseException | None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._failure = failure
        self._draining: asyncio.Task[None] | None = None
        self._tls = tls if tls is not None and tls.shows else None
        self._accepting: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. uvicorn's own TLS has no deadline of ours for handshakes, and never says why one has failed."""
        if self._tls is None:
            return await super().startup(sockets)
        await super().startup([])
        acceptor = TlsAcceptor(self._tls, lambda: TlsHttp(self.config, self.server_state, self.lifespan.state))
        self._accepting = [asyncio.create_task(acceptor.accept(each)) for each in sockets or ()]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take in nobody any more, and let what is open end."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop; asked ten times a second."""
        if self._failure() is not None:
            self._stop(Urgency.AT_ONCE)
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals that stop a process for as long as the server runs."""
        loop = asyncio.get_running_loop()
        with stop_signals(lambda urgency: loop.call_soon_threadsafe(self._stop, urgency)):
            yield

    def _stop(self, urgency: Urgency) -> None:
        if urgency is Urgency.DRAIN:
            self._draining = asyncio.create_task(self._drain_and_stop())
        else:
            self.config.timeout_graceful_shutdown = AT_ONCE_S
            self.should_exit = True

    async def _drain_and_stop(self) -> None:
        try:
            await self._drain()
        finally:
            self.should_exit = True


def serve(
    app: ASGIApp,
    host: str,
    port: int,
    *,
    drain: Callable[[], Awaitable[object]],
    max_frame_bytes: int,
    tls: Tls | None = None,
    failure: Callable[[], BaseException | None] = lambda: None,
) -> None:
    """Run ``app`` until a signal, or until it cannot go on; returns after a clean stop.

    tls: where it has a certificate, nobody is answered without TLS. failure: see ``DrainingServer``.

    Raises:
        SystemExit: the address cannot be bound; the message says why and what to do.
    """
    listener = listening(host, port)
    config = uvicorn.Config(
        app,
        log_config=None,  # What it says goes the way of all logs.
        log_level="warning",
        access_log=False,
        http="h11",  # Its limit on headers is kept; httptools has none.
        ws=BoundedWebSocket,
        ws_max_size=max_frame_bytes,
        ws_max_queue=4,
        ws_per_message_deflate=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_BYTES_S,
        server_header=False,
    )
    with suppress(KeyboardInterrupt), listener:
        DrainingServer(config, drain, tls, failure).run(sockets=[listener])


def listening(host: str, port: int) -> socket.socket:
    """A socket bound to this address, for a server: ``::`` is every address of the machine, IPv4 too, also where it has
    no IPv6. Raises SystemExit, with what to do, where it is taken."""
    if host == EVERY and not _has_ipv6():
        host = "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small messages at once (TCP_NODELAY) only on sockets that say they are TCP's; else they wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if host == EVERY:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted sockets inherit it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_WITHIN_MS)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # What the kernel has taken, nothing that is said later can overtake.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SystemExit(
            f"Cannot listen on {host_port(host, port)}: {error.strerror}. Is another server running there? "
            "Choose another --port."
        ) from error
    return listener


def _has_ipv6() -> bool:
    """Whether anything can listen on an address of IPv6 here."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind((EVERY, 0))
    except OSError:
        return False
    return True
