"""What every request passes first and every response last: its id, its origin, its key, its time, its last resort.

A plain ASGI layer, since anything that buffers would break streams and disconnects.
"""

from __future__ import annotations

import re
import time
import uuid
from typing import Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from gateway import browsers, errors
from gateway.config import GatewayConfig, words
from gateway.errors import RequestError
from gateway.keys import KeyRing, check_key
from gateway.metrics import GatewayMetrics
from gateway.refusals import note_refusal
from service.lifecycle import is_loopback

OPEN_PATHS: Final = frozenset({"/health", "/ready", "/metrics", "/device"})
"""Asked no API key: probes, scrapers, and device agents, which show a credential of their own."""

LOCAL_PATHS: Final = frozenset({"/drain"})
"""Where no API keys are set, only this machine itself may ask for these."""

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:\-]{1,128}")

log = structlog.get_logger()


class Door:
    """The outermost layer of the application but for CORS headers, which its answers get like all others."""

    def __init__(self, app: ASGIApp, config: GatewayConfig, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics
        self._config = config
        self._keys = KeyRing(config.keys)
        self._origins = frozenset(words(config.allowed_origins))
        self._hosts = frozenset(name.lower() for name in words(config.allowed_hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        began = time.perf_counter()
        headers = Headers(scope=scope)
        request_id = accepted_id(headers.get("x-request-id"))
        tenant = self._keys.tenant(headers.get("authorization"))
        scope.setdefault("state", {}).update(request_id=request_id, began=began, tenant=tenant)
        refused = self._refusal(scope, headers)
        if refused is not None:
            note_refusal(self._metrics, request_id, scope["path"], refused)
        if scope["type"] == "websocket":
            if refused is not None:
                return await _deny(WebSocket(scope, receive, send), refused)
            return await self._app(scope, receive, send)
        await self._http(scope, receive, send, refused)

    async def _http(self, scope: Scope, receive: Receive, send: Send, refused: RequestError | None) -> None:
        state = scope["state"]
        started = False

        async def stamped(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = state["request_id"]
                headers["openai-processing-ms"] = str(int((time.perf_counter() - state["began"]) * 1e3))
            await send(message)

        if refused is not None:
            return await refused.response()(scope, receive, stamped)
        try:
            await self._app(scope, receive, stamped)
        except Exception:
            self._metrics.failed.labels("internal_error").inc()
            log.exception("bug in the gateway", request_id=state["request_id"], path=scope["path"])
            if not started:
                await errors.internal().response()(scope, receive, stamped)

    def _refusal(self, scope: Scope, headers: Headers) -> RequestError | None:
        reason = browsers.refusal(
            headers.get("host"),
            headers.get("origin"),
            on_loopback=self._config.on_loopback,
            allowed_hosts=self._hosts,
            allowed_origins=self._origins,
        )
        if reason is not None:
            return RequestError(403, reason, code="forbidden_origin")
        if scope["path"] in OPEN_PATHS:
            return None
        if scope["path"] in LOCAL_PATHS and not len(self._keys) and not _is_local(scope):
            return RequestError(403, "set --api-keys to use this from another machine", code="forbidden")
        return check_key(self._keys, headers.get("authorization"))


def accepted_id(given: str | None) -> str:
    """The client's request id when it is short and plain, else a new one."""
    return given if given is not None and _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _is_local(scope: Scope) -> bool:
    client = scope.get("client")
    return client is not None and is_loopback(client[0])


async def _deny(websocket: WebSocket, refused: RequestError) -> None:
    await websocket.receive()
    if "websocket.http.response" in websocket.scope.get("extensions", {}):
        await websocket.send_denial_response(refused.response())
    else:
        await websocket.close(1008)
