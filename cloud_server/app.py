"""The cloud server's doors: one websocket for devices, and /health, /state, /metrics, /drain for operators.

Nothing textual passes here: a device sends numbers, lengths and hidden states.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import monotonic

import structlog
from fastapi import Depends, FastAPI, HTTPException, Request, WebSocket
from fastapi.responses import JSONResponse, Response

from cloud_server.config import CloudConfig
from cloud_server.device_link import DeviceLink
from cloud_server.engine import Engine
from cloud_server.ledger import Ledger, Limits
from cloud_server.metrics import CONTENT_TYPE, CloudMetrics
from split_model.stack import Stack
from wire.connection import Role
from wire.errors import Code, ConnectionFailed
from wire.hello import CloudIdentity, check_device, same_secret
from wire.limits import CLOUD_LINK
from wire.messages import CloudWelcome, DeviceHello, Drain
from wire.stream import accept

log = structlog.get_logger()

MAX_GREETING = 64
"""Connections that have not said hello yet; more are turned away, so that idle sockets cannot crowd devices out."""


class CloudServer:
    """The state behind the doors: connected devices and the engine they share."""

    def __init__(self, config: CloudConfig, identity: CloudIdentity, stack: Stack) -> None:
        limits = Limits(
            sessions=config.max_sessions,
            device_sessions=config.max_device_sessions,
            positions=config.max_positions,
            kv_positions=config.kv_positions,
            window_rows=config.window_rows,
            rows=min(config.max_rows, config.window_rows, CLOUD_LINK.rows_of(identity.hidden_size, identity.dtype)),
        )
        self.config = config
        self.identity = identity
        self.metrics = CloudMetrics()
        self.engine = Engine(stack, Ledger(limits), config.step_rows, self.metrics)
        self.links: dict[int, DeviceLink] = {}
        self._stack = stack
        self._greeting = 0
        self._connections = 0
        self._began = monotonic()

    async def serve_device(self, websocket: WebSocket) -> None:
        """One device, from its hello to the end of its connection."""
        if "origin" in websocket.headers or self._greeting >= MAX_GREETING:
            await websocket.close(1008)  # A browser page has no business here, nor has a crowd that says nothing.
            return
        self._connections += 1
        connection = self._connections
        try:
            async with accept(websocket, Role.CLOUD, CLOUD_LINK) as stream:
                self._greeting += 1
                try:
                    hello = (await stream.receive()).message
                finally:
                    self._greeting -= 1
                assert isinstance(hello, DeviceHello)
                refusal = self._refusal(hello)
                if refusal is not None:
                    raise refusal
                stream.post(self._welcome())
                link = DeviceLink(connection, hello.name, stream, self.engine, self.identity, self.metrics)
                self.links[connection] = link
                log.info("device connected", device=hello.name, connection=connection)
                try:
                    await link.serve()
                finally:
                    del self.links[connection]
                    self._count_bytes(link)
        except ConnectionFailed as failure:
            self.metrics.refused.labels(failure.code.value).inc()
            log.info("device gone", connection=connection, code=failure.code.value, why=failure.message)

    async def drain(self) -> int:
        """Refuse new sessions, tell the devices, wait for the open ones; returns how many were left at the limit."""
        self.engine.ledger.draining = True
        for link in list(self.links.values()):
            with suppress(ConnectionFailed):
                link.stream.post(Drain(self.config.drain_s))
        await self.engine.emptied(self.config.drain_s)
        return len(self.engine.ledger.entries)

    def state(self) -> dict[str, object]:
        """What /state shows: names, counts and times, nothing of any content."""
        identity, ledger = self.identity, self.engine.ledger
        return {
            "model": identity.model,
            "digest": identity.digest,
            "layers": [identity.first_layer, identity.last_layer],
            "dtype": identity.dtype,
            "loaded_bytes": self._stack.loaded_bytes,
            "kv_bytes": self.engine.kv_bytes,
            "draining": ledger.draining,
            "uptime_s": round(monotonic() - self._began, 1),
            "step_ms": round(self.engine.step_s * 1e3, 3),
            "waiting_rows": self.engine.waiting_rows,
            "positions": {"reserved": ledger.reserved, "limit": ledger.limits.kv_positions},
            "devices": [
                {
                    "connection": link.connection,
                    "name": link.name,
                    "rtt_ms": None if link.stream.rtt_s is None else round(link.stream.rtt_s * 1e3, 2),
                    "received_bytes": link.stream.received_bytes,
                    "sent_bytes": link.stream.sent_bytes,
                    "sessions": ledger.of_device(link.connection),
                }
                for link in self.links.values()
            ],
            "sessions": [
                {"connection": key[0], "session": key[1], "position": entry.position, "reserved": entry.reserved}
                for key, entry in ledger.entries.items()
            ],
        }

    def measured(self) -> bytes:
        """The metrics, brought up to date."""
        ledger = self.engine.ledger
        for link in self.links.values():
            self._count_bytes(link)
        self.metrics.running.set(len(ledger.entries))
        self.metrics.devices.set(len(self.links))
        self.metrics.waiting_rows.set(self.engine.waiting_rows)
        self.metrics.kv_usage.set(ledger.reserved / ledger.limits.kv_positions)
        return self.metrics.text()

    def _count_bytes(self, link: DeviceLink) -> None:
        received, sent = link.take_bytes()
        self.metrics.received_bytes.inc(received)
        self.metrics.sent_bytes.inc(sent)

    def _refusal(self, hello: DeviceHello) -> ConnectionFailed | None:
        if self.engine.ledger.draining:
            return ConnectionFailed(Code.DRAINING, "the server is stopping", retry_after_s=1.0)
        return check_device(self.identity, hello)

    def _welcome(self) -> CloudWelcome:
        limits = self.engine.ledger.limits
        return CloudWelcome("cloud", limits.window_rows, limits.rows, limits.positions, limits.device_sessions)


def create_app(server: CloudServer) -> FastAPI:
    """The ASGI application of a cloud server."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        steps = asyncio.create_task(server.engine.run())
        try:
            yield
        finally:
            steps.cancel()
            await asyncio.gather(steps, return_exceptions=True)
            server.engine.stop()

    app = FastAPI(title="Trilby cloud server", openapi_url=None, lifespan=lifespan)

    def check_operator(request: Request) -> None:
        """Only somebody with the token, if there is one, and never a page in a browser."""
        token = server.config.cloud_token
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if "origin" in request.headers:
            raise HTTPException(403, "this is not for web pages")
        if token and not same_secret(given, token):
            raise HTTPException(401, "this needs the cloud token as Bearer credential", {"WWW-Authenticate": "Bearer"})

    @app.websocket("/device")
    async def device(websocket: WebSocket) -> None:
        await server.serve_device(websocket)

    @app.get("/health")
    async def health() -> JSONResponse:
        status = "draining" if server.engine.ledger.draining else "ok" if server.engine.alive else "failed"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    @app.get("/state", dependencies=[Depends(check_operator)])
    async def state() -> JSONResponse:
        return JSONResponse(server.state())

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(server.measured(), media_type=CONTENT_TYPE)

    @app.post("/drain", dependencies=[Depends(check_operator)])
    async def drain() -> JSONResponse:
        return JSONResponse({"sessions_left": await server.drain()})

    return app
