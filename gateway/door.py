"""What every request passes first and every response last: its id, its origin, its key, its time, its last resort.

A plain ASGI layer, since anything that buffers would break streams and disconnects.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection
from typing import Final
from urllib.parse import unquote, urlsplit

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from gateway import errors
from gateway.config import GatewayConfig
from gateway.error_shapes import response_to
from gateway.errors import RequestError
from gateway.incidents import OPERATORS
from gateway.key_book import NOBODY, KeyBook, KeyRecord
from gateway.keys import (
    AT_ONCE_HEADER,
    MODEL_HEADER,
    TENANT_HEADER,
    TOKEN_HEADER,
    KeyRing,
    check_device,
    check_gateway,
    check_operator,
)
from gateway.metrics import GatewayMetrics
from gateway.page.files import EVENTS, PATHS
from service.addresses import is_foreign, is_loopback
from service.errands import MAX_REQUEST_ID, plain_id
from service.secret_files import current
from service.tls_server import certified_in
from service.traces import UNTRACED

DEVICE: Final = "/device"
"""Where device agents connect."""

OPEN_PATHS: Final = frozenset({"/live", "/health", "/ready", "/metrics", DEVICE})
"""Asked no API key: probes, scrapers, and device agents, which show a credential of their own."""

DRAIN: Final = "/drain"
"""For an operator only, who needs no API key."""

FOR_BOTH: Final = frozenset({"/state", EVENTS})
"""For an operator and for clients."""

GROUPS: Final = "/groups"
"""For devices that look for their group."""

UNCOUNTED: Final = frozenset({DEVICE, EVENTS})
"""What is none of clients' bytes: a device's link counts its own, and who watches would see himself."""

NOT_SENT_ON: Final = OPEN_PATHS | FOR_BOTH | PATHS | {DRAIN, GROUPS}
"""What gateways do not ask of one another."""

log = structlog.get_logger()


class Door:
    """The outermost layer of the application but for CORS headers, which its answers get like all others."""

    def __init__(self, app: ASGIApp, config: GatewayConfig, metrics: GatewayMetrics, book: KeyBook) -> None:
        self._app = app
        self._metrics = metrics
        self._config = config
        self._book = book
        self._devices, self._operators, self._gateways = KeyRing(()), KeyRing(()), KeyRing(())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        began = time.perf_counter()
        self._look()
        headers = Headers(scope=scope)
        request_id = accepted_id(headers.get("x-request-id"))
        sent_on = scope["type"] == "http" and scope["path"] not in NOT_SENT_ON
        from_gateway = headers.get(TOKEN_HEADER) if sent_on else None
        tenant = self._tenant(scope, headers) if from_gateway is None else headers.get(TENANT_HEADER, "")
        state = scope.setdefault("state", {})
        state.update(request_id=request_id, began=began, tenant=tenant, key=NOBODY, grant=None, span=UNTRACED)
        state["forwarded"], state["operator"], state["key_needed"] = from_gateway is not None, False, False
        state["model"] = unquote(headers.get(MODEL_HEADER, "")) if from_gateway is not None else ""
        state["waits"] = from_gateway is None or headers.get(AT_ONCE_HEADER) != "1"
        if from_gateway is None:
            found = self._admitted(scope, headers)
        else:  # It has looked at all of this; a wrong token is none of a client, or requests would go round.
            found = check_gateway(self._gateways, from_gateway) or self._book.of_tenant(tenant)
        refused = found if isinstance(found, RequestError) else None
        if isinstance(found, KeyRecord):
            state["key"] = found
        if refused is not None:
            self._metrics.refused(request_id, scope["path"], refused, OPERATORS)
        sent_here = from_gateway is not None and refused is None
        traffic = self._metrics.from_gateways if sent_here else self._metrics.from_clients
        if scope["path"] not in UNCOUNTED:
            receive, send = traffic.receiving(receive), traffic.sending(send)
        if scope["type"] == "websocket":
            if refused is not None:
                return await refused.deny(WebSocket(scope, receive, send))
            return await self._app(scope, receive, send)
        await self._http(scope, receive, send, refused)

    def _look(self) -> None:
        """Secrets that come from files may be others by now."""
        self._book.give(self._config.keys)
        self._devices.hold([current(self._config.device_token)])
        self._operators.hold([current(self._config.operator_token)])
        self._gateways.hold([self._config.gateway_token])

    async def _http(self, scope: Scope, receive: Receive, send: Send, refused: RequestError | None) -> None:
        state = scope["state"]
        started = False

        async def stamped(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                state["span"].note(status=message["status"])
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = state["request_id"]
                headers["openai-processing-ms"] = str(int((time.perf_counter() - state["began"]) * 1e3))
                if state["grant"] is not None:
                    headers.update(state["grant"].headers)
            await send(message)

        if refused is not None:
            return await response_to(scope["path"], refused, state["request_id"])(scope, receive, stamped)
        try:
            await self._app(scope, receive, stamped)
        except Exception:
            self._metrics.failed.labels("internal_error").inc()
            done = "answered with 500, the log has more"
            self._metrics.incidents.note(time.time(), "internal_error", "gateway", done)
            state["span"].fail("internal_error")
            log.exception("bug in the gateway", request_id=state["request_id"], path=scope["path"])
            if not started:
                told = response_to(scope["path"], errors.internal(), state["request_id"])
                await told(scope, receive, stamped)
        finally:
            state["span"].end()
            if state["grant"] is not None:
                state["grant"].close()

    def _tenant(self, scope: Scope, headers: Headers) -> str:
        """Whose request this is: empty where nobody but this machine's own user can come."""
        client = scope.get("client")  # Behind a proxy on this machine whoever X-Forwarded-For names.
        address = client[0] if client else ""
        if self._config.on_loopback and not self._book.asked and is_loopback(address):
            return ""
        return self._book.tenant(shown_key(headers), address)

    def _admitted(self, scope: Scope, headers: Headers) -> KeyRecord | RequestError | None:
        """The key that a client shows; None where it needs none here; or why it may not come in."""
        reason = foreign(
            headers.get("host"),
            headers.get("origin"),
            on_loopback=self._config.on_loopback,
            allowed_hosts=self._config.hosts,
            allowed_origins=self._config.origins,
        )
        if reason is not None:
            return RequestError(403, reason, code="forbidden_origin")
        if scope["path"] in OPEN_PATHS or scope["path"] in PATHS:
            return None
        authorization = headers.get("authorization")
        if scope["path"] == DRAIN:
            return check_operator(self._operators, authorization)
        if scope["path"] == EVENTS and self._book.asked and shown_key(headers) is None:
            scope["state"]["key_needed"] = True  # Whoever opens the page for the first time has done nothing wrong.
            return None
        if scope["path"] in FOR_BOTH and check_operator(self._operators, authorization) is None:
            scope["state"]["operator"] = True
            return None
        if scope["path"] == GROUPS:
            needed = self._config.takes_certificates
            return None if certified_in(scope) else check_device(self._devices, authorization, needed=needed)
        return self._book.admitted(shown_key(headers), time.time())


def shown_key(headers: Headers) -> str | None:
    """Return the header that shows a client's API key, ``x-api-key`` too, in which Anthropic's clients send it."""
    other = headers.get("x-api-key")
    return headers.get("authorization") or (f"Bearer {other}" if other else None)


def accepted_id(given: str | None) -> str:
    """Return the client's request id when it is short and plain, else a new one."""
    return plain_id(given, MAX_REQUEST_ID) or uuid.uuid4().hex


def foreign(
    host: str | None,
    origin: str | None,
    *,
    on_loopback: bool,
    allowed_hosts: Collection[str] = (),
    allowed_origins: Collection[str] = (),
) -> str | None:
    """Return why a request with these headers is refused, None when it is not.

    A browser lets any page open a websocket, or send a simple POST, to any address its user can reach, this machine
    included, and says so in ``Origin``: a page from elsewhere is refused unless its origin is configured. A page that
    has renamed its own server to 127.0.0.1 is of the same origin; it is refused by the name in ``Host``.

    Args:
        host, origin: the headers as received, None when missing.
        on_loopback: the gateway listens on loopback only.
        allowed_hosts: names it answers to beside loopback's; beyond loopback none means any.
    """
    if is_foreign(host, on_loopback=on_loopback, allowed=allowed_hosts):
        return "this gateway does not answer to the name in the Host header; see --allowed-hosts"
    if origin is None or origin in allowed_origins:
        return None
    try:
        same = host is not None and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        same = False
    return None if same else "pages of this origin may not use this gateway; see --allowed-origins"
