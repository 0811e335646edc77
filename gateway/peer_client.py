"""Connections to other gateways."""

from __future__ import annotations

import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote

import httpx

from gateway.config import GatewayConfig
from gateway.keys import AT_ONCE_HEADER, MODEL_HEADER, TENANT_HEADER, TOKEN_HEADER
from gateway.registry.registry import Peer
from tls.contexts import Tls

CONNECT_WITHIN_S: Final = 2.0
SILENT_S: Final = 20
"""A gateway whose machine has not acknowledged anything for so long is gone."""

MOST_CONNECTIONS: Final = 1024


class PeerFailed(Exception):
    """A gateway could not answer, and the client has not got anything yet; ``lost``: it could not be reached."""

    def __init__(self, why: str, *, lost: bool) -> None:
        super().__init__(why)
        self.lost = lost


class PeerClient:
    """Connections to other gateways, which know each other by their token: no certificate is shown, since a server's is
    none for who dials."""

    def __init__(self, config: GatewayConfig) -> None:
        self._token = config.gateway_token
        self._checked_by = {"sni_hostname": config.peer_name} if config.peer_name else None
        self._tls = Tls(ca=config.tls_ca)
        silent_s = config.wait_within_s + config.request_within_s + config.accept_within_s + SILENT_S
        options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux.
            options += [
                (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_S // 4),
                (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENT_S // 4),
                (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1000),
            ]
        limits = httpx.Limits(max_connections=MOST_CONNECTIONS, max_keepalive_connections=MOST_CONNECTIONS // 8)

        def client(trusted: ssl.SSLContext) -> httpx.AsyncClient:
            return httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(
                    verify=trusted, limits=limits, socket_options=options, trust_env=False
                ),
                timeout=httpx.Timeout(CONNECT_WITHIN_S, read=silent_s, write=SILENT_S),
                follow_redirects=False,
            )

        self._client = client
        self._trusted = self._tls.dialling()
        self._http = client(self._trusted)
        self._open: Counter[httpx.AsyncClient] = Counter()

    @asynccontextmanager
    async def asking(
        self,
        peer: Peer,
        path: str,
        body: bytes,
        request_id: str,
        tenant: str,
        traceparent: str = "",
        *,
        at_once: bool = False,
        model: str = "",
    ) -> AsyncIterator[httpx.Response]:
        """Give the other gateway's answer, its body still to be read. Raises ``PeerFailed`` where there is none.

        Args:
            traceparent: the trace context that it goes on in; empty: none.
            at_once: whether it is to be refused where it would have to wait.
            model: what is meant by a request that names none.
        """
        headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            "x-request-id": request_id,
            TOKEN_HEADER: self._token,
            TENANT_HEADER: tenant,
            AT_ONCE_HEADER: str(int(at_once)),
            MODEL_HEADER: quote(model, safe=""),
            **({"traceparent": traceparent} if traceparent else {}),
        }
        async with self._newest() as http:
            try:
                url = peer.url + path
                request = http.build_request("POST", url, content=body, headers=headers, extensions=self._checked_by)
                reply = await http.send(request, stream=True)
            except (httpx.TransportError, httpx.InvalidURL, OSError) as error:
                raise PeerFailed(type(error).__name__, lost=not isinstance(error, httpx.PoolTimeout)) from None
            try:
                yield reply
            finally:
                await reply.aclose()

    async def close(self) -> None:
        """End all connections."""
        for http in {self._http, *self._open}:
            await http.aclose()

    @asynccontextmanager
    async def _newest(self) -> AsyncIterator[httpx.AsyncClient]:
        """Connections that trust what is in the files now. Those before end with the last request on them."""
        if (trusted := self._tls.dialling()) is not self._trusted:
            before, self._trusted, self._http = self._http, trusted, self._client(trusted)
            if not self._open[before]:
                await before.aclose()
        http = self._http
        self._open[http] += 1
        try:
            yield http
        finally:
            self._open[http] -= 1
            if not self._open[http]:
                del self._open[http]
                if http is not self._http:
                    await http.aclose()
